"""What bench/plan trains: one process, or the ranks of torchrun, which share each batch of the same number of rows."""

import argparse
import json
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
parser.add_argument("--output", required=True, help="folder for what each rank has used: processor seconds of a step, bytes")
args = parser.parse_args()


def status():
    """What the kernel counts of this process's memory, in bytes."""
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return {key: int(lines[key].split()[0]) << 10 for key in ("VmHWM", "RssAnon", "RssFile")}


layers, width, heads, vocabulary, context = map(int, args.model.split("x"))
ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
import torch._dynamo  # optimizers do so
before = status()
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
    after = status()
    # Of what is private to it. Files that are mapped stay so; what ranks share counts in the highest mark, too, and this is none of them.
    json.dump({"seconds": statistics.median(used[2:]), "private_bytes": after["VmHWM"] - after["RssFile"] - before["RssAnon"]}, file)

if ranks > 1:
    dist.destroy_process_group()
