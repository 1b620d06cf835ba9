"""Trains the byte-level GPT in one process: python train.py [--steps 30]"""

import argparse
import time

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

from model import GPT, Windows, read_text

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--batch", type=int, default=8, help="windows per step")
args = parser.parse_args()

torch.manual_seed(0)
loader = DataLoader(Windows(read_text()), batch_size=args.batch, shuffle=True, drop_last=True)
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, fused=True)

step = 0
while step < args.steps:
    for inputs, targets in loader:
        begin = time.perf_counter()
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        print(f"step {step}/{args.steps} loss {loss.item():.5f} time {1000 * (time.perf_counter() - begin):.0f} ms", flush=True)
        if step == args.steps:
            break
