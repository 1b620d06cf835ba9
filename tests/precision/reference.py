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
    for module in narrow.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda module, args: tuple(a.to(module.weight.dtype) for a in args))
    return narrow


def narrow_from(narrow, wide):
    for p, w in zip(narrow.parameters(), wide.parameters()):
        p.data.copy_(w.data)


class Reference:
    def __init__(self, name, optimizer, dtype, ranks, clip=None):
        self.name, self.dtype, self.ranks, self.clip = name, dtype, ranks, clip
        self.wide = build(name)
        self.narrow = working_copy(self.wide, dtype)
        self.trained = [(n, w) for n, w in zip(self.narrow.parameters(), self.wide.parameters()) if w.requires_grad]
        self.optimizer = optimizer_for(optimizer, [w for _, w in self.trained])
        self.scale = SCALE if dtype is torch.float16 else 1.0
        self.losses = [[] for _ in range(ranks)]
        self.norms, self.skipped = [], 0

    def rank_gradients(self, step, rank):
        self.narrow.zero_grad()
        x, y = batch(self.name, step, rank)
        x = x.to(self.dtype) if x.is_floating_point() else x
        loss = loss_of(self.narrow(x).float(), y)
        self.losses[rank].append(loss.item())
        (loss * self.scale).backward()
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

    def step(self, step):
        for (_, wide), grad in zip(self.trained, self.sums(step)):
            wide.grad = grad
        if not all(torch.isfinite(w.grad).all() for _, w in self.trained):
            self.scale *= 0.5
            self.skipped += 1
            return
        if self.clip:
            norm = torch.nn.utils.clip_grad_norm_([w for _, w in self.trained], self.clip)
            self.norms.append(norm.item())
        self.optimizer.step()
        narrow_from(self.narrow, self.wide)
