"""A run that lasts: it makes a model, wraps it, trains it for some small steps, copies and saves it, drops it, and begins
again until it is told to stop. After each cycle every rank appends a line of what its process holds to DIR/rankR.jsonl.

    torchrun --nproc-per-node N long_ddp.py --out DIR      (ends when DIR/stop exists)
"""

import argparse
import copy
import gc
import io
import json
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

WIDTHS = (64, 96, 300, 128, 500)  # by turns, so that freed places never fit the next model exactly

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--steps", type=int, default=25, help="of a cycle")
args = parser.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)


def make(cycle):
    width = WIDTHS[cycle % len(WIDTHS)]
    network = nn.Sequential(nn.Linear(32, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 5))
    model = DistributedDataParallel(network, find_unused_parameters=cycle % 3 == 0)
    if cycle % 2:
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(cycle):
    model, optimizer = make(cycle)
    for step in range(args.steps):
        loss = F.cross_entropy(model(torch.randn(8, 32)), torch.randint(0, 5, (8,)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    copied = copy.deepcopy(model.module)
    torch.save({"model": copied.state_dict(), "optimizer": optimizer.state_dict()}, io.BytesIO())


def held():
    with open("/proc/self/status") as file:
        status = {line.split(":")[0]: line.split()[1] for line in file if line.startswith(("VmRSS", "RssShmem", "Threads"))}
    with open("/proc/self/maps") as file:
        maps = sum(1 for _ in file)
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(status["Threads"]),
        "maps": maps,
        "resident_kib": int(status["VmRSS"]),
        "shared_kib": int(status["RssShmem"]),
    }


os.makedirs(args.out, exist_ok=True)
with open(os.path.join(args.out, f"rank{rank}.jsonl"), "w") as lines:
    cycle, going = 0, torch.ones(())
    while going:
        train(cycle)
        gc.collect()
        dist.barrier()
        cycle += 1
        lines.write(json.dumps({"cycle": cycle, "steps": cycle * args.steps, **held()}) + "\n")
        lines.flush()
        going.fill_(not os.path.exists(os.path.join(args.out, "stop")))
        dist.broadcast(going, 0)
dist.destroy_process_group()
