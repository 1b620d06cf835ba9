"""Mixed precision written out: float masters, a working copy in 16 bits, gradients as floats into torch.optim's step.

One process computes what each of the ranks would."""
import copy

import torch
from models import batch, build, loss_of, optimizer_for

SCALE, GROWTH_STEPS = 2.0**16, 1000


def working_copy(model, dtype):
    narrow = copy.deepcopy(model).to(dtype)
    for module, wide in zip(narrow.modules(), model.modules()):
        if isinstance(wide, torch.nn.BatchNorm2d):
            module.float()
    for p in narrow.parameters():
        if dtype is torch.float16:  # its uses add up as floats
            p.grad_dtype = torch.float32
    for module in narrow.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda module, args: tuple(a.to(module.weight.dtype) for a in args))
    return narrow


def narrow_from(narrow, wide):
    for p, w in zip(narrow.parameters(), wide.parameters()):
        p.data.copy_(w.data)


class Reference:
    def __init__(self, name, optimizer, dtype, ranks, clip=None, habit=None):
        self.name, self.dtype, self.ranks, self.clip, self.habit = name, dtype, ranks, clip, habit
        self.wide = build(name)
        self.narrow = working_copy(self.wide, dtype)
        self.trained = [(n, w) for n, w in zip(self.narrow.parameters(), self.wide.parameters()) if w.requires_grad]
        self.optimizer = optimizer_for(optimizer, [w for _, w in self.trained])
        self.scale = SCALE if dtype is torch.float16 else 1.0
        self.losses = [[] for _ in range(ranks)]
        self.norms, self.skipped = [], 0
        self.outside = [[] for _ in range(ranks)]

    def rank_gradients(self, step, rank):
        self.narrow.zero_grad()
        x, y = batch(self.name, step, rank)
        x.requires_grad_(self.habit == "foreign")
        loss = loss_of(self.narrow(x.to(self.dtype) if x.is_floating_point() else x).float(), y)
        if self.habit == "overflow" and (step, rank) == (1, 1):
            loss = loss * 1e6
        if self.habit == "penalty":
            loss = loss + 0.01 * sum(p.float().pow(2).sum() for p in self.narrow.parameters())
        self.losses[rank].append(loss.item())
        (loss * self.scale).backward()
        if self.habit == "foreign":
            self.outside[rank].append(x.grad / self.scale)
        return [n.grad for n, _ in self.trained]

    def sums(self, step):
        """In rank order: of bfloat16 in its type, rounded after each addition; of float16 in float, without the scale."""
        total = None
        for rank in range(self.ranks):
            grads = self.rank_gradients(step, rank)
            if self.dtype is torch.float16:
                grads = [g.float() / self.scale for g in grads]
            grads = [g * (1 / self.ranks) for g in grads]
            total = grads if total is None else [t + g for t, g in zip(total, grads)]
        return [t.float() for t in total]

    def step(self, *steps):
        """`steps`: the micro-steps that make one, with the mean of their gradients."""
        means = [[grad / len(steps) for grad in self.sums(step)] for step in steps]
        for (_, wide), *grads in zip(self.trained, *means):
            wide.grad = sum(grads)
        if not all(torch.isfinite(w.grad).all() for _, w in self.trained):
            self.scale *= 0.5
            self.skipped += 1
            return
        if self.clip:
            norm = torch.nn.utils.clip_grad_norm_([w for _, w in self.trained], self.clip)
            self.norms.append(norm.item())
        self.optimizer.step()
        narrow_from(self.narrow, self.wide)
