"""A DistributedDataParallel script, short, whose every printed number must come out the same, bit for bit:

    steps.py [--optimizer sgd|adam] [--steps N] [--seconds PAUSE] [--fill STEP] [--lock STEP]

It trains, evaluates on rank 0, forks a child that looks at the weights later, and saves all at the end. --fill: from
that step on the disk of CASTOR_OFFLOAD_DIR is full. --lock: at that step rank 1 locks all
its memory."""
import argparse
import ctypes
import hashlib
import os
import time

import torch
import torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--optimizer", choices=("sgd", "adam"), default="sgd")
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--seconds", type=float, default=0)
parser.add_argument("--fill", type=int)
parser.add_argument("--lock", type=int)
args = parser.parse_args()
rank = int(os.environ["RANK"])


def say(*words):
    os.write(1, (" ".join(map(str, ("rank", rank, *words))) + "\n").encode())


def digest(state):
    found = hashlib.sha256()
    for name in sorted(state):
        found.update(state[name].detach().contiguous().view(torch.uint8).numpy())
    return found.hexdigest()[:16]


torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meeting", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
widths = (64, *(256,) * 9, 8)
layers = [layer for sizes in zip(widths, widths[1:]) for layer in (nn.Linear(*sizes), nn.ReLU())]
network = nn.Sequential(*layers[:-1])
model = nn.parallel.DistributedDataParallel(network)
if args.optimizer == "sgd":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
samples = torch.randn(16 * args.steps, 64)
wanted = torch.arange(16 * args.steps) % 8
reader, child = None, 0
for step in range(args.steps):
    at = slice(16 * step + 8 * rank, 16 * step + 8 * rank + 8)
    optimizer.zero_grad()
    if step == args.fill and rank == 1:
        with open(os.path.join(os.environ["CASTOR_OFFLOAD_DIR"], "filler"), "wb", buffering=0) as file:
            try:
                while file.write(b"x" * 4096):
                    pass
            except OSError as error:
                os.write(1, f"disk: {error.strerror}\n".encode())
    if step == args.lock and rank == 1:
        os.write(1, f"locked: {ctypes.CDLL(None).mlockall(1)}\n".encode())  # MCL_CURRENT
    loss = nn.functional.cross_entropy(model(samples[at]), wanted[at])
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    say("step", step, "loss", loss.item().hex(), "norm", norm.item().hex())
    if step == 2 and rank == 0:
        with torch.no_grad():
            say("evaluated", network(samples).sum().item().hex())
    if step == 1:
        before, (reader, writer) = digest(network.state_dict()), os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)  # ends when the parent has taken further steps
            say("child", "sees" if digest(network.state_dict()) == before else "does not see", "the weights of the fork")
            os._exit(0)
        os.close(reader)
    if step == 3:
        os.close(writer)
        os.waitpid(child, 0)
    time.sleep(args.seconds)
say("weights", digest(network.state_dict()))
for number, state in optimizer.state_dict()["state"].items():
    say("state", number, digest({name: value for name, value in state.items() if torch.is_tensor(value)}))
dist.destroy_process_group()
say("done")
