"""A plain GPT on one CUDA device, for run.py: train.py LAYERS HIDDEN OPTIMIZER MICRO_STEPS STEPS [--evaluate]

Beside training it prints, as JSON, what the simulation counted on the device's link and what Castor counted in slots at the end of each
step, and which of its model data lay on the host. --evaluate: passes forward only, nothing is written.
"""
import argparse
import ctypes
import json
import time

import torch
from torch import nn
from torch.nn import functional as F

from castor.agent import core
from castor.agent.device import homes

VOCABULARY, LENGTH, HEADS = 256, 32, 4
SLOTS = "region_bytes", "uses", "hits", "prefetched", "in_time", "home_reads", "copies", "copied_bytes", "stale"


class Block(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, length, hidden = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, hidden // HEADS).permute(2, 0, 3, 1, 4)
        seen = (q @ k.transpose(-2, -1)) / (hidden // HEADS) ** 0.5
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        mixed = seen.masked_fill(later, float("-inf")).softmax(-1) @ v
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, hidden))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, layers, hidden):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, hidden), nn.Embedding(LENGTH, hidden)
        self.blocks = nn.ModuleList(Block(hidden) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def link_bytes():
    torch.cuda.synchronize()
    count = ctypes.CDLL("libcastor-sim.so").sim_link_bytes
    count.restype = ctypes.c_ulonglong
    return count(0, 0), count(0, 1)


def slots():
    found = homes.statistics(0)
    return {name: getattr(found, name) for name in SLOTS}


def on_host(tensors):
    """For each whether its home is there."""
    return [tier == core.HOME_HOST for tier in homes.tiers(tensors)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("layers", type=int)
    parser.add_argument("hidden", type=int)
    parser.add_argument("optimizer", choices=("momentum", "adamw"))
    parser.add_argument("micro_steps", type=int)
    parser.add_argument("steps", type=int)
    parser.add_argument("--evaluate", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GPT(args.layers, args.hidden).to("cuda")
    if args.optimizer == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = torch.randint(0, VOCABULARY, (64, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    link, counted, losses, seconds = [link_bytes()], [slots()], [], []

    def loss_of(number):
        ids = data[number % 32 * 2 :][:2].to("cuda")
        logits = model(ids[:, :-1])
        return F.cross_entropy(logits.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))

    for step in range(args.steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        for micro in range(args.micro_steps):
            with torch.set_grad_enabled(not args.evaluate):
                loss = loss_of(step * args.micro_steps + micro)
            if not args.evaluate:
                (loss / args.micro_steps).backward()
        if not args.evaluate:
            optimizer.step()
        link.append(link_bytes())
        counted.append(slots())
        seconds.append(time.perf_counter() - begin)
        losses.append(loss.item())
    rows = []
    named = list(model.named_parameters())
    states = [[s for s in optimizer.state[p].values() if isinstance(s, torch.Tensor) and s.dim()] for _, p in named]
    hosts = iter(on_host([t for (_, p), s in zip(named, states) for t in (p, *([p.grad] if p.grad is not None else []), *s)]))
    for (name, p), of in zip(named, states):
        row = {"name": name, "bytes": p.nbytes, "dimensions": p.dim(), "param": next(hosts)}
        row["grad"] = next(hosts) if p.grad is not None else False
        row["states"] = [next(hosts) for _ in of]
        rows.append(row)
    print(json.dumps({"link": link, "slots": counted, "losses": losses, "seconds": seconds, "parameters": rows}))


main()
