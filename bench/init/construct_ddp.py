"""Makes a GPT on every rank and wraps it; knows nothing of Castor. Waits for the driver before it begins (run.py)."""

import argparse
import hashlib
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "gpt_cpu"))
from model import GPT  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder")
parser.add_argument("--width", type=int, required=True)
parser.add_argument("--layers", type=int, required=True)
parser.add_argument("--vocabulary", type=int, required=True)
parser.add_argument("--apply", action="store_true", help="initialize all weights a second time, as minGPT and nanoGPT do")
parser.add_argument("--apart", action="store_true", help="a seed of its own for each rank")
parser.add_argument("--no-wrap", action="store_true")
parser.add_argument("--devices", action="store_true", help="move the model to this rank's device")
args = parser.parse_args()


def initialize(module):
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)


def tell(stage, **what):
    path = os.path.join(args.folder, f"{stage}{rank}")
    with open(path + ".part", "w") as file:
        json.dump(dict(pid=os.getpid(), time=time.monotonic(), **what), file)
    os.replace(path + ".part", path)


def wait_for(name):
    while not os.path.exists(os.path.join(args.folder, name)):
        time.sleep(0.02)


device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if args.devices else torch.device("cpu")
if args.devices:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if args.devices else "gloo")
rank = dist.get_rank()
dist.barrier()
tell("ready")
wait_for("go")
torch.manual_seed(1 + (rank if args.apart else 0))
model = GPT(args.vocabulary, args.width, args.layers, args.width // 64, 1024)
if args.apply:
    model.apply(initialize)
model = model.to(device)
tell("built")
if not args.no_wrap:
    model = DistributedDataParallel(model)
tell("wrapped")
wait_for("end")
digest = hashlib.blake2b(torch.get_rng_state().numpy(), digest_size=16)
for parameter in model.parameters():
    digest.update(parameter.detach().cpu().reshape(-1).view(torch.uint8).numpy())
tell("digest", digest=digest.hexdigest(), parameters=sum(p.numel() for p in model.parameters()))
dist.barrier()
dist.destroy_process_group()
