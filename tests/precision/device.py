"""A script that trains on the CPU or on devices, without matrix products, whose sums a simulated device forms in an order of its own. With ranks around it
each has a part of a batch, and the model is in DistributedDataParallel.

    device.py --on cpu|cuda [--load FILE] [--save FILE] [--habit NAME,...]

Prints what it sees. Some habits are those that CASTOR_PRECISION refuses on devices.
"""
import argparse
import contextlib
import hashlib
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS = 4
RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(300, 512)
        self.norm = nn.LayerNorm(512)
        self.mix = nn.Conv1d(8, 8, 3, padding=1, groups=8)
        self.shift = nn.Parameter(torch.randn(8, 512))

    def forward(self, words):
        x = self.norm(self.words(words)) + self.shift
        return self.mix(F.gelu(x) * torch.sigmoid(x)).mean(1)[:, :10]


def say(text):
    """A line whole, of this rank."""
    os.write(1, f"rank {RANK} {text}\n".encode())


def digest(t):
    return hashlib.sha256(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()).hexdigest()[:24]


def digests(tensors):
    return " ".join(f"{name} {digest(t)}" for name, t in tensors.items())


def captured(optimizer):
    """torch.cuda.graph, of a step."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()


@torch.no_grad()
def after_step(habits, model, step):
    """What scripts do to their weights."""
    if "edit" in habits:
        model.shift.data.clamp_(-0.1, 0.1)
    if "swap" in habits:  # as for an evaluation with averaged weights
        saved = [p.detach().clone() for p in model.parameters()]
        for p in model.parameters():
            p.data.mul_(0.5)
        for p, s in zip(model.parameters(), saved):
            p.data.copy_(s)
    if "write through" in habits:
        for name, value in model.state_dict().items():
            if not name.startswith("words"):
                value.mul_(0.75)
    if "load" in habits and step == 1:
        model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})
        say(f"loaded {digests(model.state_dict())}")
    if "one saves" in habits and RANK == step % RANKS:
        say(f"step {step} saves {digests(model.state_dict())}")
    if "one writes" in habits and RANK == RANKS - 1:
        model.shift.data.mul_(0.5)
    if "frozen" in habits:
        model.mix.weight.requires_grad_(step % 2 == 0)


def main():
    parser = argparse.ArgumentParser()
    for name in ("on", "load", "save", "habit"):
        parser.add_argument("--" + name)
    args = parser.parse_args()
    habits = (args.habit or "").split(",")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    on = args.on
    if RANKS > 1:
        on = f"cuda:{RANK}" if on == "cuda" else on
        torch.distributed.init_process_group("nccl" if args.on == "cuda" else "gloo")
        if args.on == "cuda":
            torch.cuda.set_device(RANK)
    model = Model()
    aside = nn.Linear(2, 2) if "both" in habits else nn.Module()
    if "late" not in habits:
        model.to(on)
    whole = nn.parallel.DistributedDataParallel(model, find_unused_parameters="frozen" in habits) if RANKS > 1 else model
    optimizer = torch.optim.AdamW([*model.parameters(), *aside.parameters()], lr=1e-2)
    model.to(on)
    first = 0
    if args.load:
        kept = torch.load(args.load, map_location="cpu")
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        first = STEPS
    if "inside" in habits:
        model.shift.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    held = model.state_dict() if "held" in habits else {}
    for step in range(first, first + STEPS):
        chance = torch.Generator().manual_seed(step)
        words, classes = (torch.randint(0, high, size, generator=chance)[RANK::RANKS].to(on) for high, size in ((300, (16, 8)), (10, (16,))))
        optimizer.zero_grad()
        with whole.no_sync() if "apart" in habits and step == 3 else contextlib.nullcontext():
            with torch.autocast("cuda", torch.bfloat16) if "autocast" in habits else contextlib.nullcontext():
                loss = F.cross_entropy(whole(words), classes)
            (loss * 1e7 if step == 2 and RANK == RANKS - 1 else loss).backward()
        norm = None if "not clipped" in habits else nn.utils.clip_grad_norm_(model.parameters(), 0.05).item()
        captured(optimizer) if "captured" in habits else optimizer.step()
        say(f"step {step} loss {loss.item()!r} norm {norm!r}")
        after_step(habits, model, step)
    say(f"held {digests(held)}")
    shown = model.state_dict()
    for name, p in model.named_parameters():
        say(f"{name} {digest(p)} {digest(p.grad)} {digest(shown[name])}")
    states = optimizer.state_dict()
    for number, state in states["state"].items():
        say(f"{number} {[(key, digest(value)) for key, value in state.items()]}")
    say(f"scale {states.get('castor_loss_scale')}")
    if args.save and RANK == 0:
        torch.save({"model": shown, "optimizer": states}, args.save)
    if RANKS > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
