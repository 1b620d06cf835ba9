"""What a training script notes about its own steps: one JSON line per step and rank.

Times are CLOCK_MONOTONIC, which the driver shares, so that its samples from outside can be matched with steps.
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist


def arguments(*extra):
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", required=True)
    parser.add_argument("--batch", type=int, default=4, help="sequences per rank and step")
    parser.add_argument("--steps", type=int, required=True, help="steps in all")
    parser.add_argument("--memory-steps", type=int, default=0, help="of these, last ones after which memory is read")
    parser.add_argument("--records", required=True, help="folder for the records")
    for flags, options in extra:
        parser.add_argument(*flags, **options)
    return parser.parse_args()


class Recorder:
    def __init__(self, args, parameters):
        """`parameters`: how many elements the model has."""
        self.first_memory_step = args.steps - args.memory_steps
        self.file = open(os.path.join(args.records, f"rank{dist.get_rank()}.jsonl"), "w", buffering=1)
        self.write(pid=os.getpid(), parameters=parameters, torch=torch.__version__)
        self.step = 0

    def write(self, **record):
        self.file.write(json.dumps(record) + "\n")

    def begin(self):
        self.begin_time = time.monotonic()

    def end(self, loss):
        """Call after zero_grad. After a memory step every rank waits for the others and reads its memory."""
        record = dict(step=self.step, begin=self.begin_time, end=time.monotonic(), loss=float(loss))
        if self.step >= self.first_memory_step:
            dist.barrier()
            with open("/proc/self/smaps_rollup") as rollup:
                record["pss"] = next(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss:"))
            dist.barrier()
        self.write(**record)
        self.step += 1
