#!/usr/bin/env python3
"""How many decisions of hybrid parallelism one core makes in a second: rank lists, meshes, specs, paths, schedules, stages.

    bench/parallel/run.py [--rounds 7] [--milliseconds 50] [--program build/bin/bench-parallel] [-o FILE]

Nothing runs but the mathematics of interpose/parallel. The table shows medians of the rounds; the result has them all.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--milliseconds", type=int, default=50, help="of each decision in a round")
    parser.add_argument("--program", default=os.path.join(ROOT, "build", "bin", "bench-parallel"))
    parser.add_argument("-o", "--output", default=os.path.join(ROOT, "bench", "results", "parallel.json"))
    args = parser.parse_args()
    command = [args.program, str(args.rounds), str(args.milliseconds)]
    rows = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    print(f"{'decision':32}{'case':46}{'a second':>12}{'us each':>12}")
    for row in rows:
        median = statistics.median(row["per_second"])
        print(f"{row['decision']:32}{row['case']:46}{median:12.0f}{1e6 / median:12.2f}")
    result = {
        "bench": "parallel",
        "command": f"bench/parallel/run.py --rounds {args.rounds} --milliseconds {args.milliseconds}",
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "load": os.getloadavg()[0]},
        "rows": rows,
    }
    with open(args.output, "w", encoding="ascii") as out:
        json.dump(result, out, indent=1)
        out.write("\n")


main()
