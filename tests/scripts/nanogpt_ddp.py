"""A GPT run with the habits of small research repositories: synchronization switched by hand over the
micro-batches, evaluation and checkpoints on the master alone, weights tied, matrices decayed apart, resume.

    torchrun --nproc-per-node 2 nanogpt_ddp.py --out DIR [--resume]
"""

import argparse
import math
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from model import GPT
from record import Recorder
from text import corpus

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--resume", action="store_true", help="go on from DIR/ckpt.pt")
parser.add_argument("--iterations", type=int, default=6)
args = parser.parse_args()

batch_size, block_size, accumulation = 2, 32, 3
learning_rate, warmup, decay_until, clip = 1e-3, 2, 12, 1.0

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
master = rank == 0
torch.manual_seed(1337 + rank)
data = corpus()
train_data, valid_data = data[:150_000], data[150_000:]


def get_batch(part):
    source = train_data if part == "train" else valid_data
    starts = torch.randint(len(source) - block_size, (batch_size,))
    x = torch.stack([source[i : i + block_size] for i in starts])
    y = torch.stack([source[i + 1 : i + 1 + block_size] for i in starts])
    return x, y


model = GPT(context=block_size, layers=2, width=320)
decayed = [p for p in model.parameters() if p.dim() >= 2]
others = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), fused=True)
iteration, best = 0, 1e9
log = Recorder(args.out)
if args.resume:
    checkpoint = torch.load(log.path("ckpt.pt"))
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iteration, best = checkpoint["iteration"], checkpoint["best"]
    checkpoint = None
model = DDP(model)
raw_model = model.module


@torch.no_grad()
def estimate_loss():
    model.eval()
    means = {}
    for part in ("train", "valid"):
        losses = torch.zeros(3)
        for k in range(3):
            x, y = get_batch(part)
            losses[k] = raw_model(x, y)[1].item()
        means[part] = losses.mean().item()
    model.train()
    return means


def learning_rate_at(step):
    if step < warmup:
        return learning_rate * (step + 1) / (warmup + 1)
    return 1e-4 + 0.5 * (1 + math.cos(math.pi * (step - warmup) / (decay_until - warmup))) * (learning_rate - 1e-4)


last = iteration + args.iterations
x, y = get_batch("train")
while True:
    lr = learning_rate_at(iteration)
    for group in optimizer.param_groups:
        group["lr"] = lr
    if iteration % 3 == 0 and master:
        means = estimate_loss()
        print(f"iteration {iteration}: train {means['train']:.4f} valid {means['valid']:.4f}", flush=True)
        log.note("loss", means)
        if means["valid"] < best:
            best = means["valid"]
            if iteration > 0:
                state = {
                    "model": raw_model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "iteration": iteration,
                    "best": best,
                }
                torch.save(state, log.path("ckpt.pt"))
    if iteration == last:
        break
    for micro in range(accumulation):
        model.require_backward_grad_sync = micro == accumulation - 1
        logits, loss = model(x, y)
        loss = loss / accumulation
        x, y = get_batch("train")
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iteration += 1
    log.note("loss", loss)
    if master:
        print(f"iteration {iteration} loss {loss.item() * accumulation:.4f}", flush=True)

log.step(model=model, optimizer=optimizer)
log.close()
dist.destroy_process_group()
