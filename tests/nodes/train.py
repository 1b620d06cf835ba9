"""Trains a deep network of equal layers with DistributedDataParallel on several nodes, and measures what crosses eth0:

    train.py --steps N [--fail-at STEP --fail-rank R] [--late] [--last-rate RATE] [--halves] [--own-seeds]

The last line of a node's first rank is `node BYTES`: what this host sent for a step, of the steps after the second. With
--late the last rank looks at the parameters and the optimizer's states again when the others' scripts have ended. --last-rate
is the learning rate of the ranks of the last node. With --halves each half of the layers is a DistributedDataParallel.
With --own-seeds each rank draws other weights, of which rank 0's count."""
import argparse
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from network import sent

WIDTH, LAYERS, BATCH = 256, 16, 8

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--fail-at", type=int, default=-1)
parser.add_argument("--fail-rank", type=int, default=-1)
parser.add_argument("--late", action="store_true")
parser.add_argument("--last-rate", type=float, default=1e-3)
parser.add_argument("--halves", action="store_true")
parser.add_argument("--own-seeds", action="store_true")
args = parser.parse_args()

if args.fail_at >= 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun may end the rank beside the killed one before it has said what it saw

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1 + rank if args.own_seeds else 1)
layers = [module for _ in range(LAYERS) for module in (nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh())]
parts = (layers[:LAYERS], layers[LAYERS:]) if args.halves else (layers,)
model = nn.Sequential(*(DistributedDataParallel(nn.Sequential(*part)) for part in parts))
on_last_node = rank >= world - int(os.environ["LOCAL_WORLD_SIZE"])
optimizer = torch.optim.AdamW(model.parameters(), lr=args.last_rate if on_last_node else 1e-3)
data = torch.randn(args.steps, world, BATCH, WIDTH, generator=torch.Generator().manual_seed(2))
for step in range(args.steps):
    if step == args.fail_at and rank == args.fail_rank and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    if step == 2:
        dist.barrier()
        begin = sent()
    loss = (model(data[step, rank]) - data[step, rank].sin()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        print(f"loss {loss.item():.6f}")


def looked_at():
    states = [value for p in model.parameters() for value in optimizer.state[p].values()]
    return ",".join(str(sum(t.double().abs().sum().item() for t in listed)) for listed in (list(model.parameters()), states))


if args.late and rank == 0:
    print(f"early {looked_at()}")
dist.barrier()
if os.environ["LOCAL_RANK"] == "0":
    sys.stdout.write(f"node {(sent() - begin) / (args.steps - 2):.0f}\n")
    sys.stdout.flush()
dist.destroy_process_group()
if args.late and rank == 0:
    time.sleep(1)  # the ranks beside it have ended
if args.late and rank == world - 1:
    time.sleep(3)
    print(f"late {looked_at()}", flush=True)
