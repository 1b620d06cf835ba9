#!/usr/bin/env python3
"""Sharded linears and redistributions by castor.tensor beside the same by PyTorch's DTensor, in one job that takes turns. Ratios are of one round; on a
machine that others use only they count."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.dirname(HERE))

import jobs  # noqa: E402
import summary  # noqa: E402


def main():
    parser = jobs.parser(__doc__, "tensor", 31, 1800, "the job")
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    head, measured = jobs.in_one_job("tensor", args.python, args.ranks, os.path.join(HERE, "rank.py"), (args.rounds,), args.timeout)
    machine = head["machine"]
    results = {
        **head,
        "conditions": f"{machine['cores']} cores, torch {head['versions']['torch']}, {args.ranks} ranks over gloo, one thread each; medians of {args.rounds} rounds. Results and "
        f"gradients are equal bit for bit. Load of the machine, this job's own included: {machine['load']:.0f}.",
        "cases": measured,
    }
    jobs.write(results, args.output)
    print(summary.markdown(results))


main()
