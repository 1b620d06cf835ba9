"""A plain DistributedDataParallel script that notes what each part of a step takes, one JSON line per step and rank.

Times are CLOCK_MONOTONIC, which the driver and its sampler share. Under Castor what `castor.memory_stats()` says is noted too.
"""

import argparse
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "gpt_cpu"))

from model import GPT, SIZES, batches

parser = argparse.ArgumentParser()
parser.add_argument("--size", required=True, choices=SIZES)
parser.add_argument("--batch", type=int, default=1, help="sequences per rank and step")
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--optimizer", choices=("adam", "sgd"), default="adam")
parser.add_argument("--records", required=True, help="folder for the records")
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")

model = DistributedDataParallel(GPT(**SIZES[args.size]))
if args.optimizer == "adam":
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
data = batches(args.size, args.batch, dist.get_rank())
statistics = sys.modules["castor"].memory_stats if "castor" in sys.modules else dict
records = open(os.path.join(args.records, f"rank{dist.get_rank()}.jsonl"), "w", buffering=1)


def write(**record):
    records.write(json.dumps(record) + "\n")


write(pid=os.getpid(), torch=torch.__version__, parameters=sum(p.numel() for p in model.parameters()),
      largest_bytes=max(p.nbytes for p in model.parameters()))
for step in range(args.steps):
    inputs, targets = next(data)
    before, begin = statistics(), time.monotonic()
    loss = model(inputs, targets)
    forward = time.monotonic()
    loss.backward()
    backward, at_backward = time.monotonic(), statistics()
    optimizer.step()
    stepped, at_step = time.monotonic(), statistics()
    optimizer.zero_grad()
    end = time.monotonic()
    write(step=step, begin=begin, forward=forward, backward=backward, stepped=stepped, end=end, loss=float(loss.detach()),
          statistics=[before, at_backward, at_step])

dist.destroy_process_group()
