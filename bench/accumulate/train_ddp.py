"""Gradient accumulation as DistributedDataParallel has it: no_sync() for all micro-batches of a step but the last."""

import contextlib
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "gpt_cpu"))

from model import GPT, SIZES, batches  # noqa: E402
from recorder import Recorder, arguments  # noqa: E402

args = arguments((["--accumulate"], dict(type=int, required=True, help="micro-batches of a step")))
torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")

model = DistributedDataParallel(GPT(**SIZES[args.size]))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
recorder = Recorder(args, model.module.count_parameters())
data = batches(args.size, args.batch, dist.get_rank())

for step in range(args.steps):
    last = step % args.accumulate == args.accumulate - 1
    inputs, targets = next(data)
    recorder.begin()
    with contextlib.nullcontext() if last else model.no_sync():
        loss = model(inputs, targets)
        (loss / args.accumulate).backward()
    if last:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    recorder.end(loss)

dist.destroy_process_group()
