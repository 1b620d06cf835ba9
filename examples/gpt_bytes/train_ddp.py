"""Trains the byte-level GPT with DistributedDataParallel: torchrun --nproc-per-node 2 train_ddp.py [--steps 30]"""

import argparse
import time

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from model import GPT, Windows, read_text

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--batch", type=int, default=4, help="windows per rank and step")
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
data = Windows(read_text())
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
model = DistributedDataParallel(GPT())
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, fused=True)

step, epoch = 0, 0
while step < args.steps:
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        begin = time.perf_counter()
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        step += 1
        if dist.get_rank() == 0:
            milliseconds = 1000 * (time.perf_counter() - begin)
            print(f"step {step}/{args.steps} loss {shown.item() / dist.get_world_size():.5f} time {milliseconds:.0f} ms", flush=True)
        if step == args.steps:
            break
    epoch += 1

dist.destroy_process_group()
