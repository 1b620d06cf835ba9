#!/usr/bin/env python3
"""gloo's collectives through the node's memory, beside gloo's own, in one job that takes turns: their times by operation
and size, and that of a copy of as many bytes. Ratios are of one round; on a machine that others use only they count."""

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


def measure(args, ranks):
    with tempfile.TemporaryDirectory(prefix="castor-bench-") as folder:
        output = os.path.join(folder, "results.json")
        rank = [os.path.join(HERE, "rank.py"), output, str(args.rounds), str(args.largest << 20)]
        castor = [jobs.CASTOR, "run", "--plugin", "gemini", "--set", "CASTOR_NODE_COLLECTIVES=auto", "--log-dir", os.path.join(folder, "log")]
        command = castor + ["--"] + jobs.torchrun(args.python, ranks) + rank
        subprocess.run(command, env=jobs.clean_environment(), timeout=args.timeout, check=True)
        with open(output) as file:
            return json.load(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.path.join(ROOT, ".venv", "bin", "python"), help="interpreter with torch")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--largest", type=int, default=256, help="MiB of the largest buffer")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for one run")
    parser.add_argument("-o", "--output", default=os.path.join(ROOT, "bench", "results", "collectives.json"))
    args = parser.parse_args()
    load = os.getloadavg()[0]
    ranks = {str(ranks): measure(args, ranks) for ranks in args.ranks}
    versions = subprocess.run(
        [args.python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=True
    ).stdout.strip()
    load = max(load, os.getloadavg()[0])
    results = {
        "bench": "collectives",
        "command": "bench/collectives/run.py " + " ".join(sys.argv[1:]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "load": load},
        "versions": {"torch": versions, "libc": " ".join(platform.libc_ver())},
        "conditions": f"{os.cpu_count()} cores, torch {versions}; medians of the ratios in {args.rounds} rounds. "
        f"Load of the machine, this job's own included: {load:.0f}.",
        "ranks": ranks,
    }
    with open(args.output, "w") as out:
        json.dump(results, out)
        out.write("\n")
    print(summary.markdown(results))


main()
