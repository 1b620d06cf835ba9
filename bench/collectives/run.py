#!/usr/bin/env python3
"""gloo's collectives through the node's memory, beside gloo's own, in one job that takes turns: their times by operation
and size, and that of a copy of as many bytes. Ratios are of one round; on a machine that others use only they count."""

import json
import os
import subprocess
import sys
import tempfile

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
    parser = jobs.parser(__doc__, "collectives", 7, 3600)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--largest", type=int, default=256, help="MiB of the largest buffer")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    ranks = {str(ranks): measure(args, ranks) for ranks in args.ranks}
    head = jobs.head("collectives", args.python, load)
    results = {
        **head,
        "conditions": f"{os.cpu_count()} cores, torch {head['versions']['torch']}; medians of the ratios in {args.rounds} rounds. "
        f"Load of the machine, this job's own included: {head['machine']['load']:.0f}.",
        "ranks": ranks,
    }
    jobs.write(results, args.output)
    print(summary.markdown(results))


main()
