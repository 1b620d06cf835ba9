"""A small script, of DDP or of one process; each rank says when its first step is done, and then gives the driver time to read its memory."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

kind, seconds = sys.argv[1], float(sys.argv[2])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
if kind == "torchrun":
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
inputs = torch.randn(64, 64)
for step in range(3):
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    if step == 0:
        sys.stdout.write(f"first step {time.monotonic()} {os.getpid()}\n")
        sys.stdout.flush()
sys.stdout.write(f"loss {float(loss):.9g}\n")
sys.stdout.flush()
time.sleep(seconds)
if kind == "torchrun":
    dist.destroy_process_group()
