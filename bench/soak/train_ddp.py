"""A training run that can be cut off anywhere: it goes on from its last checkpoint, and writes at its end what it has
learned, as a hash of every parameter and optimizer state.

    torchrun --nproc-per-node N train_ddp.py --out DIR --steps S --every E
"""

import argparse
import hashlib
import json
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

WIDTH, CLASSES = 256, 7

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--every", type=int, default=20, help="steps between two checkpoints")
args = parser.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
os.makedirs(args.out, exist_ok=True)
checkpoint = os.path.join(args.out, "checkpoint.pt")


def batch(step):
    """A batch of its own for every step and rank, whatever came before."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(16, WIDTH, generator=generator), torch.randint(0, CLASSES, (16,), generator=generator)


def replace_file(path, write):
    """The old file stays whole until the new one is."""
    write(path + ".new")
    os.replace(path + ".new", path)


def learned(model, optimizer):
    digest = hashlib.blake2b(digest_size=16)
    for p in model.parameters():
        state = optimizer.state[p]
        for tensor in (p, *(state[name] for name in sorted(state) if torch.is_tensor(state[name]))):
            digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


torch.manual_seed(1)
layers = [nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)]
network = nn.Sequential(*layers)
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
first = 0
if os.path.exists(checkpoint):
    saved = torch.load(checkpoint)
    network.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    first = saved["step"]
model = DistributedDataParallel(network)
if rank == 0:
    print(f"from step {first}", flush=True)

for step in range(first, args.steps):
    x, y = batch(step)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    if (step + 1) % args.every == 0:
        if rank == 0:
            state = {"model": network.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
            replace_file(checkpoint, lambda path: torch.save({**state, "step": step + 1}, path))
        dist.barrier()

found = [None] * dist.get_world_size()
dist.all_gather_object(found, learned(network, optimizer))
if rank == 0:
    with open(os.path.join(args.out, "learned.json.new"), "w") as file:
        json.dump({"ranks": found, "loss": loss.item()}, file)
    os.replace(os.path.join(args.out, "learned.json.new"), os.path.join(args.out, "learned.json"))
dist.destroy_process_group()
