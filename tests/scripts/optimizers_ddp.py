"""Optimizers beyond the usual ones: closures, state across parameters, wrappers, classes of the script."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import record
from model import Classifier, batch
from steps import train_step


def train(log, make_optimizer, steps=3, scale=1.0):
    model = DistributedDataParallel(Classifier())
    optimizer = make_optimizer(model)
    for step in range(steps):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) * scale
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


def train_with_closure(log, optimizer_of, steps=3, averaged=False):
    """`averaged`: the optimizer decides by the loss, so that all ranks must hand it the same."""
    model = DistributedDataParallel(Classifier())
    optimizer = optimizer_of(model.parameters())
    for step in range(steps):
        x, y = batch(step)

        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            log.gradients(model, "inside the closure")
            if averaged:
                loss = loss.detach().clone()
                dist.all_reduce(loss)
                loss /= dist.get_world_size()
            return loss

        loss = optimizer.step(closure)
        log.step(loss, model, optimizer)


@record.case
def closure_adam(log):
    train_with_closure(log, lambda p: torch.optim.Adam(p, lr=1e-3))


@record.case
def closure_sgd(log):
    train_with_closure(log, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))


@record.case
def lbfgs(log):
    train_with_closure(log, lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3), steps=2, averaged=True)


@record.case
def lbfgs_with_line_search(log):
    train_with_closure(log, lambda p: torch.optim.LBFGS(p, lr=1.0, max_iter=4, line_search_fn="strong_wolfe"), steps=2, averaged=True)


class GlobalNorm(torch.optim.Optimizer):
    """Normalizes the whole update: every parameter's step depends on all gradients."""

    def __init__(self, parameters, lr=0.5):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        with_gradient = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in with_gradient]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad / norm.clamp_min(1.0), alpha=group["lr"])


@record.case
def global_norm(log):
    train(log, lambda model: GlobalNorm(model.parameters()), scale=30.0)


class Lamb(torch.optim.Optimizer):
    """A trust ratio per tensor, and a gradient norm over all of them."""

    def __init__(self, parameters, lr=1e-2, betas=(0.9, 0.999)):
        super().__init__(parameters, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure=None):
        total = torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"] if p.grad is not None]).norm()
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = p.grad / total.clamp_min(1.0)
                state = self.state[p]
                if not state:
                    state["step"], state["m"], state["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                state["m"].lerp_(grad, 1 - first)
                state["v"].mul_(second).addcmul_(grad, grad, value=1 - second)
                update = state["m"] / (1 - first ** state["step"]) / ((state["v"] / (1 - second ** state["step"])).sqrt() + 1e-6)
                ratio = (p.norm() / update.norm().clamp_min(1e-6)).clamp(0.01, 10) if p.ndim > 1 else 1.0
                p.sub_(update * ratio * group["lr"])


@record.case
def lamb(log):
    train(log, lambda model: Lamb(model.parameters()), scale=30.0)


class Muon(torch.optim.Optimizer):
    """Orthogonalized momentum: each rank does its share of the matrices, and all ranks gather the updates."""

    def __init__(self, parameters, lr=0.02, momentum=0.95):
        super().__init__(list(parameters), {"lr": lr, "momentum": momentum})

    @staticmethod
    def orthogonal(matrix, rounds=3):
        x = matrix / (matrix.norm() + 1e-7)
        transposed = x.shape[0] > x.shape[1]
        x = x.t() if transposed else x
        for _ in range(rounds):
            a = x @ x.t()
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        return x.t() if transposed else x

    @torch.no_grad()
    def step(self, closure=None):
        rank, world = dist.get_rank(), dist.get_world_size()
        for group in self.param_groups:
            matrices = group["params"]
            for base in range(0, len(matrices), world):
                mine = matrices[base + rank] if base + rank < len(matrices) else None
                largest = max(p.numel() for p in matrices[base : base + world])
                update = torch.zeros(largest)
                if mine is not None and mine.grad is not None:
                    state = self.state[mine]
                    if "momentum" not in state:
                        state["momentum"] = torch.zeros_like(mine)
                    state["momentum"].lerp_(mine.grad, 1 - group["momentum"])
                    update[: mine.numel()] = self.orthogonal(mine.grad.lerp(state["momentum"], group["momentum"])).reshape(-1)
                gathered = [torch.empty(largest) for _ in range(world)]
                dist.all_gather(gathered, update)
                for p, piece in zip(matrices[base : base + world], gathered):
                    p.add_(piece[: p.numel()].view_as(p), alpha=-group["lr"])


@record.case
def muon(log):
    """Matrices by Muon, the rest by AdamW; the momentum exists on one rank each."""
    model = DistributedDataParallel(Classifier())
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim != 2]
    muon, adam = Muon(matrices), torch.optim.AdamW(vectors, lr=1e-3)
    for step in range(3):
        x, y = batch(step)
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        muon.step()
        adam.step()
        log.step(loss, model, adam)
        log.step(None, None, muon)


if hasattr(torch.optim, "Muon"):

    @record.case
    def muon_of_pytorch(log):
        train(log, lambda model: torch.optim.Muon([p for p in model.parameters() if p.ndim == 2], lr=1e-2))


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimization: climb to the worst point nearby, take its gradient, come back, step."""

    def __init__(self, parameters, base, rho=0.05, **settings):
        super().__init__(parameters, {"rho": rho, **settings})
        self.base = base(self.param_groups, **settings)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def climb(self):
        norm = torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"] if p.grad is not None]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["old"] = p.data.clone()
                    p.add_(p.grad, alpha=group["rho"] / (norm.item() + 1e-12))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p]["old"]
        self.base.step()


@record.case
def sam(log):
    model = DistributedDataParallel(Classifier())
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    for step in range(3):
        x, y = batch(step)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.climb()
        log.parameters(model, "parameters at the top")
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        log.step(loss, model, optimizer.base)
        optimizer.zero_grad()


class ScheduleFree(torch.optim.Optimizer):
    """Trains at an interpolation of two sequences and evaluates at the averaged one."""

    def __init__(self, parameters, lr=0.1, beta=0.9):
        super().__init__(parameters, {"lr": lr, "beta": beta, "k": 0, "training": True})

    @torch.no_grad()
    def eval(self):
        for group in self.param_groups:
            if group["training"]:
                for p in group["params"]:
                    if "z" in self.state[p]:
                        p.lerp_(self.state[p]["z"], 1 - 1 / group["beta"])
                group["training"] = False

    @torch.no_grad()
    def train(self):
        for group in self.param_groups:
            if not group["training"]:
                for p in group["params"]:
                    if "z" in self.state[p]:
                        p.lerp_(self.state[p]["z"], 1 - group["beta"])
                group["training"] = True

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            weight = 1 / (group["k"] + 1)
            for p in group["params"]:
                if p.grad is None:
                    continue
                if "z" not in self.state[p]:
                    self.state[p]["z"] = p.clone()
                z = self.state[p]["z"]
                p.lerp_(z, weight)
                p.add_(p.grad, alpha=group["lr"] * (group["beta"] * (1 - weight) - 1))
                z.sub_(p.grad, alpha=group["lr"])
            group["k"] += 1


@record.case
def schedule_free(log):
    model = DistributedDataParallel(Classifier())
    optimizer = ScheduleFree(model.parameters())
    for step in range(4):
        optimizer.train()
        loss = train_step(model, optimizer, step)
        optimizer.eval()
        with torch.no_grad():
            log.note("validation loss", F.cross_entropy(model.module(batch(99)[0]), batch(99)[1]))
        log.step(loss, model, optimizer)


class Prodigy(torch.optim.Optimizer):
    """Adam whose step size follows from how far all parameters together have come: sums over all of them, kept in the group
    and not in a parameter's state."""

    def __init__(self, parameters, lr=1.0, betas=(0.9, 0.999), first_distance=1e-3):
        super().__init__(parameters, {"lr": lr, "betas": betas, "distance": first_distance, "inner": 0.0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            first, second = group["betas"]
            distance, inner, length = group["distance"], group["inner"] * second**0.5, 0.0
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["start"] = p.detach().clone()
                    state["m"], state["v"], state["s"] = (torch.zeros_like(p) for _ in range(3))
                inner += distance * group["lr"] * torch.dot(p.grad.flatten(), (state["start"] - p).flatten()).item()
                state["m"].mul_(first).add_(p.grad, alpha=(1 - first) * distance)
                state["v"].mul_(second).addcmul_(p.grad, p.grad, value=(1 - second) * distance**2)
                state["s"].mul_(second**0.5).add_(p.grad, alpha=(1 - second**0.5) * distance)
                length += state["s"].abs().sum().item()
            group["inner"] = inner
            group["distance"] = distance = max(distance, inner / length if length else 0.0)
            for p in group["params"]:
                state = self.state[p]
                p.addcdiv_(state["m"], state["v"].sqrt().add_(distance * 1e-8), value=-distance * group["lr"])


@record.case
def prodigy(log):
    train(log, lambda model: Prodigy(model.parameters()), steps=5)


class Noisy(torch.optim.SGD):
    """Calls the step above it and adds noise: what is drawn must be drawn alike on every rank."""

    def step(self, closure=None):
        result = super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.add_(torch.randn_like(p), alpha=1e-3)
        return result


@record.case
def noisy_subclass(log):
    train(log, lambda model: Noisy(model.parameters(), lr=0.1))
    log.note("random state", torch.rand(3))


class Centralized(torch.optim.AdamW):
    """Changes gradients, then calls the step above it."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.ndim > 1:
                    p.grad.sub_(p.grad.mean(dim=1, keepdim=True))
        return super().step(closure)


@record.case
def subclass_that_edits_gradients(log):
    train(log, lambda model: Centralized(model.parameters(), lr=1e-3))


class Wrapper(torch.optim.Optimizer):
    """An optimizer around another one, which looks at all gradients first."""

    def __init__(self, inner):
        self.inner, self.seen = inner, []
        super().__init__(inner.param_groups, {})
        self.param_groups, self.state = inner.param_groups, inner.state

    def step(self, closure=None):
        self.seen.append(sum(p.grad.norm().item() for g in self.param_groups for p in g["params"] if p.grad is not None))
        return self.inner.step(closure)


@record.case
def wrapper_around_adam(log):
    model = DistributedDataParallel(Classifier())
    optimizer = Wrapper(torch.optim.Adam(model.parameters(), lr=1e-3))
    for step in range(3):
        loss = train_step(model, optimizer, step)
        log.note("norms", optimizer.seen)
        log.step(loss, model, optimizer.inner)


class Lookahead:
    """Not an Optimizer: holds one, and pulls the weights back every other step."""

    def __init__(self, inner, every=2):
        self.inner, self.every, self.count = inner, every, 0
        self.slow = [[p.detach().clone() for p in group["params"]] for group in inner.param_groups]

    def step(self):
        self.inner.step()
        self.count += 1
        if self.count % self.every == 0:
            for group, slow in zip(self.inner.param_groups, self.slow):
                for p, s in zip(group["params"], slow):
                    s.lerp_(p.detach(), 0.5)
                    p.data.copy_(s)


@record.case
def lookahead(log):
    model = DistributedDataParallel(Classifier())
    optimizer = Lookahead(torch.optim.AdamW(model.parameters(), lr=1e-3))
    for step in range(4):
        x, y = batch(step)
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer.inner)


if __name__ == "__main__":
    record.main()
