"""What bench/plan trains: one process, or the ranks of torchrun, which share each batch of the same number of rows."""

import argparse
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "gpt_cpu"))

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from model import GPT

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True, help="as castor plan --model: layers, hidden size, heads, vocabulary, context")
parser.add_argument("--rows", type=int, required=True, help="of all ranks together")
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--output", required=True, help="folder for the processor seconds of each rank's step")
args = parser.parse_args()

layers, width, heads, vocabulary, context = map(int, args.model.split("x"))
ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
torch.manual_seed(0)
torch.set_num_threads(1)
model = GPT(vocabulary=vocabulary, width=width, layers=layers, heads=heads, context=context)
if ranks > 1:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

used = []
for step in range(args.steps):
    begin = time.process_time()
    tokens = torch.randint(vocabulary, (args.rows // ranks, context + 1))
    loss = model(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss.item()
    used.append(time.process_time() - begin)

with open(os.path.join(args.output, f"rank{rank}"), "w") as file:
    file.write(f"{statistics.median(used[2:])}")

if ranks > 1:
    dist.destroy_process_group()
