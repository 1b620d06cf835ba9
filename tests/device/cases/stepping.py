"""How parameters are stepped, and how optimizers are kept."""
import os

import torch
import torch.nn.functional as F

from . import case
from .networks import GPT, LENGTH, MLP, batch, tokens
from .optimizers import GENERAL, OPTIMIZERS


@case(optimizers=("lbfgs", *GENERAL))
def closure(log, make):
    model = MLP(width=512).cuda()
    optimizer = make(model.parameters())
    for step in range(3):
        x, y = batch(step)

        def compute():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        log.step(optimizer.step(compute))
    log.end(model, optimizer)


@case(optimizers=("lbfgs",))
def line_search(log, make):
    model = MLP(width=512, depth=1).cuda()
    optimizer = make(model.parameters(), lr=1.0, line_search_fn="strong_wolfe")
    x, y = batch(0)

    def compute():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(2):
        log.step(optimizer.step(compute))
    log.end(model, optimizer)


@case(optimizers=("muon",))
def matrices_apart(log, make):
    """Muon for the blocks' matrices, AdamW for the rest."""
    model = GPT(context=LENGTH).cuda()
    matrices = [parameter for name, parameter in model.named_parameters() if parameter.dim() == 2 and name.startswith("blocks")]
    rest = [parameter for parameter in model.parameters() if not any(parameter is one for one in matrices)]
    optimizers = make(matrices), torch.optim.AdamW(rest, lr=1e-3)
    for step in range(3):
        _, loss = model(*tokens(step))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        log.step(loss)
    log.end(model, *optimizers)


@case
def resumed(log, make):
    """Weights and states go through a file in mid-run, into a new model and a new optimizer."""
    model = MLP().cuda()
    optimizer = make(model.parameters())
    path = os.path.join(log.folder, "checkpoint.pt")
    for step in range(4):
        if step == 2:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
            del model, optimizer
            checkpoint = torch.load(path, map_location="cpu")
            model = MLP()
            model.load_state_dict(checkpoint["model"])
            model.cuda()
            optimizer = make(model.parameters())
            optimizer.load_state_dict(checkpoint["optimizer"])
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


@case
def weights_put_back(log, make):
    """The weights of the first step are kept in memory and in a file, and loaded into the same model."""
    model = MLP().cuda()
    optimizer = make(model.parameters())
    path = os.path.join(log.folder, "weights.pt")
    for step in range(5):
        if step == 1:
            kept = {name: value.clone() for name, value in model.state_dict().items()}
            torch.save(model.state_dict(), path)
        if step == 2:
            model.load_state_dict(kept)
        if step == 3:
            model.load_state_dict(torch.load(path, map_location="cuda"))
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


@case
def states_put_back(log, make):
    model = MLP().cuda()
    optimizer = make(model.parameters())
    path = os.path.join(log.folder, "states.pt")
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if step == 0:
            torch.save(optimizer.state_dict(), path)
        if step == 2:
            optimizer.load_state_dict(torch.load(path, map_location="cuda"))
        log.step(loss)
    log.end(model, optimizer)


@case
def stepped_in_backward(log, make):
    """An optimizer for each parameter, which steps as soon as the gradient is there and frees it."""
    model = MLP().cuda()
    optimizers = {parameter: make([parameter]) for parameter in model.parameters()}

    def step_now(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    handles = [parameter.register_post_accumulate_grad_hook(step_now) for parameter in model.parameters()]
    for step in range(4):
        x, y = batch(step)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        log.step(loss)
    log.end(model, *optimizers.values())
    for handle in handles:  # else the hooks keep the model for ever, and the next case has less memory
        handle.remove()


@case(optimizers=("sgd",))
def stepped_by_hand(log, make):
    """No optimizer at all."""
    model = MLP().cuda()
    for step in range(4):
        x, y = batch(step)
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.05 * parameter.grad
        log.step(loss)
    log.end(model)


class Lion(torch.optim.Optimizer):
    """An optimizer of the script's."""

    def __init__(self, parameters, lr=1e-3):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    kept = self.state[parameter].setdefault("average", torch.zeros_like(parameter))
                    parameter.add_(kept.mul(0.9).add(parameter.grad, alpha=0.1).sign_(), alpha=-group["lr"])
                    kept.lerp_(parameter.grad, 0.01)


class ByNorm(torch.optim.Optimizer):
    """Normalizes the whole update: each step depends on all gradients."""

    def __init__(self, parameters, lr=0.5):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        with_gradient = [parameter for group in self.param_groups for parameter in group["params"] if parameter.grad is not None]
        norm = torch.stack([parameter.grad.norm() for parameter in with_gradient]).norm()
        for parameter in with_gradient:
            parameter.sub_(parameter.grad / norm.clamp_min(1.0), alpha=self.param_groups[0]["lr"])


@case(optimizers=("sgd",))
def optimizers_of_the_script(log, make):
    model = MLP().cuda()
    optimizers = Lion(model.blocks.parameters()), ByNorm([*model.enter.parameters(), *model.head.parameters()])
    for step in range(4):
        x, y = batch(step)
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        log.step(loss)
    log.end(model, *optimizers)


@case
def in_no_optimizer(log, make):
    """Parameters that have gradients and are not stepped."""
    model = MLP().cuda()
    optimizer = make(model.blocks.parameters())
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


@case
def rarely_stepped(log, make):
    """Two optimizers for one model; the second steps every other time."""
    model = MLP().cuda()
    optimizers = make(model.blocks.parameters()), OPTIMIZERS["adamw"]([*model.enter.parameters(), *model.head.parameters()])
    for step in range(4):
        x, y = batch(step)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for optimizer in optimizers[: 1 + step % 2]:
            optimizer.step()
            optimizer.zero_grad()
        log.step(loss)
    log.end(model, *optimizers)
