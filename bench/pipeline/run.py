#!/usr/bin/env python3
"""A step of castor.engine's pipeline schedules beside those of torch.distributed.pipelining: the same stages, ranks, microbatches and model, in one
job that takes turns. Ratios are of one round; on a machine that others use only they count."""

import argparse
import json
import os
import sys

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
    head, measured = jobs.in_one_job("pipeline", args.python, args.ranks, os.path.join(HERE, "rank.py"), (args.rounds, args.steps, args.samples), args.timeout)
    machine = head["machine"]
    results = {
        **head,
        "conditions": f"{machine['cores']} cores, torch {head['versions']['torch']}, {args.ranks} stages over gloo, one thread each; medians of {args.rounds} rounds of "
        f"{args.steps} steps. Losses and gradients are equal bit for bit. Load of the machine, this job's own included: {machine['load']:.0f}.",
        **measured,
    }
    with open(args.output, "w", encoding="ascii") as out:
        json.dump(results, out)
        out.write("\n")
    print(summary.markdown(results))


main()
