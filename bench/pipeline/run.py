#!/usr/bin/env python3
"""A step of castor.engine's pipeline schedules beside those of torch.distributed.pipelining: the same stages, ranks, microbatches and model, in one
job that takes turns. Ratios are of one round; on a machine that others use only they count."""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.dirname(HERE))

import jobs  # noqa: E402
import summary  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.path.join(ROOT, ".venv", "bin", "python"), help="interpreter with torch")
    parser.add_argument("--ranks", type=int, default=2, help="stages")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--steps", type=int, default=1, help="of each system in a round")
    parser.add_argument("--samples", type=int, default=8, help="of a batch")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for the job")
    parser.add_argument("-o", "--output", default=os.path.join(ROOT, "bench", "results", "pipeline.json"))
    args = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="castor-bench-") as folder:
        output = os.path.join(folder, "results.json")
        castor = [jobs.CASTOR, "run", "--plugin", "none", "--log-dir", os.path.join(folder, "log"), "--"]
        rank = [os.path.join(HERE, "rank.py"), output, str(args.rounds), str(args.steps), str(args.samples)]
        subprocess.run(castor + jobs.torchrun(args.python, args.ranks) + rank, env=jobs.clean_environment(), timeout=args.timeout, check=True)
        with open(output) as file:
            measured = json.load(file)
    versions = subprocess.run([args.python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=True).stdout.strip()
    load = max(load, os.getloadavg()[0])
    results = {
        "bench": "pipeline",
        "command": "bench/pipeline/run.py " + " ".join(sys.argv[1:]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "load": load},
        "versions": {"torch": versions, "libc": " ".join(platform.libc_ver())},
        "conditions": f"{os.cpu_count()} cores, torch {versions}, {args.ranks} stages over gloo, one thread each; medians of {args.rounds} rounds of "
        f"{args.steps} steps. Losses and gradients are equal bit for bit. Load of the machine, this job's own included: {load:.0f}.",
        **measured,
    }
    with open(args.output, "w", encoding="ascii") as out:
        json.dump(results, out)
        out.write("\n")
    print(summary.markdown(results))


main()
