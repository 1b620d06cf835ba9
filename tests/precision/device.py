"""A script that trains on the CPU or on a device, without matrix products, whose sums a simulated device forms in an order of its own.

    device.py --on cpu|cuda [--load FILE] [--save FILE] [--habit NAME]

Prints what it sees. A habit is one that CASTOR_PRECISION refuses on devices.
"""
import argparse
import contextlib
import hashlib

import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS = 4


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


def digest(t):
    return hashlib.sha256(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()).hexdigest()[:24]


def captured(optimizer):
    """torch.cuda.graph, of a step."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()


def main():
    parser = argparse.ArgumentParser()
    for name in ("on", "load", "save", "habit"):
        parser.add_argument("--" + name)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Model()
    aside = nn.Linear(2, 2) if args.habit == "both" else nn.Module()
    if args.habit != "late":
        model.to(args.on)
    optimizer = torch.optim.AdamW([*model.parameters(), *aside.parameters()], lr=1e-2)
    model.to(args.on)
    first = 0
    if args.load:
        kept = torch.load(args.load, map_location="cpu")
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        first = STEPS
    if args.habit == "inside":
        model.shift.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    for step in range(first, first + STEPS):
        chance = torch.Generator().manual_seed(step)
        words, classes = (torch.randint(0, high, size, generator=chance).to(args.on) for high, size in ((300, (16, 8)), (10, (16,))))
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16) if args.habit == "autocast" else contextlib.nullcontext():
            loss = F.cross_entropy(model(words), classes)
        (loss * 1e7 if step == 2 else loss).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        captured(optimizer) if args.habit == "captured" else optimizer.step()
        print(f"step {step} loss {loss.item()!r} norm {norm.item()!r}")
    for name, p in model.named_parameters():
        print(f"{name} {digest(p)} {digest(p.grad)} {digest(model.state_dict()[name])}")
    states = optimizer.state_dict()
    for number, state in states["state"].items():
        print(f"{number} {[(key, digest(value)) for key, value in state.items()]}")
    print(f"scale {states.get('castor_loss_scale')}")
    if args.save:
        torch.save({"model": model.state_dict(), "optimizer": states}, args.save)


if __name__ == "__main__":
    main()
