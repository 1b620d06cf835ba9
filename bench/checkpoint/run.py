#!/usr/bin/env python3
"""Saving and loading a model with its Adam states by Castor's writer, beside torch.save, safetensors, PyTorch's DCP and the disk; and how long an
asynchronous save holds training up, beside DCP's async_save. One process takes turns; a save counts when it is on disk."""

import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.dirname(HERE))

import jobs  # noqa: E402
import summary  # noqa: E402


def main():
    parser = jobs.parser(__doc__, "checkpoint", 7, 3600, "the job")
    parser.add_argument("--folder", default="/tmp", help="where the files lie, on a disk")
    parser.add_argument("--mib", type=int, default=960, help="size of what is saved")
    parser.add_argument("--steps", type=int, default=12, help="of training, with a save after three")
    parser.add_argument("--batch", type=int, default=512, help="rows of a step's input")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="castor-bench-checkpoint-", dir=args.folder) as folder:
        head, measured = jobs.in_one_job("checkpoint", args.python, 1, os.path.join(HERE, "rank.py"), (folder, args.mib, args.rounds, args.steps, args.batch), args.timeout)
    machine = head["machine"]
    results = {
        **head,
        "conditions": f"{machine['cores']} cores, torch {head['versions']['torch']}, {measured['bytes'] >> 20} MiB: a model and Adam's states, one thread; medians "
        f"of {args.rounds} rounds. Load of the machine, this job's own included: {machine['load']:.0f}.",
        **measured,
    }
    jobs.write(results, args.output)
    print(summary.markdown(results))


main()
