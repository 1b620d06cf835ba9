"""One process of the allocator bench: trains a small GPT for some steps and prints, as one JSON line, what each cost.

It is plain PyTorch on one thread. The allocator is what the environment makes it.
"""

import json
import os
import resource
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, LAYERS, WIDTH, HEADS, LENGTH, BATCH = 2048, 4, 256, 4, 256, 6
WARM_UP = 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.attention(self.norm1(x)).view(batch, length, 3, HEADS, width // HEADS)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x):
        x = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def peak_resident_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def main(steps):
    torch.set_num_threads(1)
    imported = resident_bytes()
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    rows = []
    for step in range(WARM_UP + steps):
        # Lengths differ from step to step, as those of real batches do.
        length = LENGTH - 32 * (step % 3)
        tokens = torch.randint(VOCABULARY, (BATCH, length + 1))
        used, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.view(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
        del logits
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        wall, now = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
        rows.append(
            {
                "ms": wall * 1e3,
                "cpu_ms": (now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime) * 1e3,
                "system_ms": (now.ru_stime - used.ru_stime) * 1e3,
                "faults": now.ru_minflt - used.ru_minflt,
                "between": resident_bytes() - imported,
            }
        )
    result = {key: statistics.median(row[key] for row in rows[WARM_UP:]) for key in rows[0]}
    result["peak"] = peak_resident_bytes() - imported
    result["parameters"] = sum(p.numel() for p in model.parameters())
    result["loss"] = loss.item()
    print(json.dumps(result))


main(int(sys.argv[1]))
