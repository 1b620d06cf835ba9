#!/usr/bin/env python3
"""A step of castor.engine's pipeline schedules beside those of torch.distributed.pipelining: the same stages, ranks, microbatches and model, in one
job that takes turns. Ratios are of one round; on a machine that others use only they count."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.dirname(HERE))

import jobs  # noqa: E402
import summary  # noqa: E402


def main():
    parser = jobs.parser(__doc__, "pipeline", 31, 1800, "the job")
    parser.add_argument("--ranks", type=int, default=2, help="stages")
    parser.add_argument("--steps", type=int, default=1, help="of each system in a round")
    parser.add_argument("--samples", type=int, default=8, help="of a batch")
    args = parser.parse_args()
    head, measured = jobs.in_one_job("pipeline", args.python, args.ranks, os.path.join(HERE, "rank.py"), (args.rounds, args.steps, args.samples), args.timeout)
    machine = head["machine"]
    results = {
        **head,
        "conditions": f"{machine['cores']} cores, torch {head['versions']['torch']}, {args.ranks} stages over gloo, one thread each; medians of {args.rounds} rounds of "
        f"{args.steps} steps. Losses and gradients are equal bit for bit. Load of the machine, this job's own included: {machine['load']:.0f}.",
        **measured,
    }
    jobs.write(results, args.output)
    print(summary.markdown(results))


main()
