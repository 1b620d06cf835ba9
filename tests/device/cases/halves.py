"""CASTOR_PRECISION: what a script does under it, beside the same written out for plain PyTorch.

Each case begins with the type of its working parameters; rows.py gives it to Castor as well."""
import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

from shown import described

from . import case
from .networks import GPT, LENGTH, MLP, Convolutions, batch, images, tokens

SCALE = 2.0**16
OPTIMIZERS = "sgd", "momentum", "nesterov", "adam", "adamw", "adamw-fused", "adamw-single", "adagrad"


class Script:
    """A script, which knows nothing of types; and what it does to gradients, for one that is written out."""

    def __init__(self, build, make, dtype):
        self.model = build().cuda()
        self.optimizer = make(self.model.parameters())
        states = self.optimizer.state_dict()
        if "castor_loss_scale" in states:  # as at first, whatever case came before
            self.optimizer.load_state_dict({**states, "castor_loss_scale": {"scale": SCALE, "good": 0}})

    def __call__(self, x):
        return self.model(x)

    def backward(self, loss):
        loss.backward()

    def clip(self, norm):
        return nn.utils.clip_grad_norm_(self.model.parameters(), norm)

    def step(self):
        self.optimizer.step()

    def zero_grad(self):
        self.optimizer.zero_grad()

    def weights(self):
        return self.model.state_dict()

    def load(self, weights, states):
        self.model.load_state_dict(weights)
        self.optimizer.load_state_dict(states)

    def write(self, name, change):
        change(self.model.get_parameter(name).data)

    def write_shown(self, name, change):
        """Through what state_dict() shows."""
        change(self.model.state_dict()[name])


class ByHand(Script):
    """The same by hand: float masters, a working copy of 16 bits, a scale for float16, and steps that are left out if a gradient is not
    finite."""

    def __init__(self, build, make, dtype):
        self.dtype, self.wide = dtype, build().cuda()
        self.model = copy.deepcopy(self.wide).to(dtype)
        for module in self.model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.float()
        if dtype is torch.float16:
            for p in self.model.parameters():
                p.grad_dtype = torch.float32
        self.optimizer = make(self.wide.parameters())
        self.pairs = list(zip(self.model.parameters(), self.wide.parameters()))
        self.scale = SCALE if dtype is torch.float16 else 1.0
        self.overflowed = False

    def __call__(self, x):
        return self.model(x.to(self.dtype) if x.is_floating_point() else x).float()

    def backward(self, loss):
        before = [p.grad for p, _ in self.pairs]
        for p, _ in self.pairs:
            p.grad = None
        (loss * self.scale).backward()
        self.overflowed = False
        for (p, _), sum_before in zip(self.pairs, before):
            if p.grad is not None:
                p.grad.mul_(1 / self.scale)
                if sum_before is not None:
                    p.grad = sum_before + p.grad
                self.overflowed |= self.scale != 1 and not torch.isfinite(p.grad).all().item()
            else:
                p.grad = sum_before
        if self.overflowed:
            self.scale /= 2

    def clip(self, most):
        """Norms and products in float, and the products are rounded to the gradient's type."""
        grads = [p.grad for p, _ in self.pairs if p.grad is not None]
        norm = torch.stack([g.float().norm() for g in grads]).norm()
        coefficient = (most / (norm + 1e-6)).clamp(max=1.0)
        for g in grads:
            g.copy_(g.float() * coefficient)
        return norm

    def step(self):
        if self.overflowed:
            return
        for p, w in self.pairs:
            w.grad = None if p.grad is None else p.grad.float()
        self.optimizer.step()
        self.narrow()

    @torch.no_grad()
    def narrow(self):
        for p, w in self.pairs:
            p.copy_(w)

    def zero_grad(self):
        for p, _ in self.pairs:
            p.grad = None

    def weights(self):
        return {**self.wide.state_dict(), **dict(self.model.named_buffers())}

    def load(self, weights, states):
        self.wide.load_state_dict(weights)
        self.model.load_state_dict(weights)
        self.optimizer.load_state_dict(states)

    @torch.no_grad()
    def write(self, name, change):
        p, w = self.model.get_parameter(name), self.wide.get_parameter(name)
        before = p.clone()
        change(p)
        w.copy_(torch.where(p != before, p.float(), w))

    def write_shown(self, name, change):
        change(self.wide.get_parameter(name).data)
        self.narrow()


def begin(build, make, dtype):
    return (Script if os.environ.get("CASTOR_PRECISION", "fp32") != "fp32" else ByHand)(build, make, dtype)


def sizes(values):
    return sum(t.nbytes for t in values if isinstance(t, torch.Tensor))


def end(training):
    """What there is to see: working parameters and gradients; weights and states as a checkpoint has them."""
    weights, states = training.weights(), training.optimizer.state_dict()
    states.pop("castor_loss_scale", None)
    for name, p in training.model.named_parameters():
        print(f"parameter {name} {described(p)}" + (f" gradient {described(p.grad)}" if p.grad is not None else ""))
    for name, value in weights.items():
        print(f"weight {name} {described(value)}")
    for number, state in states["state"].items():
        for key, value in state.items():
            print(f"state {number} {key} {described(value) if isinstance(value, torch.Tensor) else value}")
    print(f"groups {states['param_groups']}")
    of_states = [value for state in states["state"].values() for value in state.values()]
    parameters = list(training.model.parameters())
    print(f"model data {sizes(parameters) + sizes(p.grad for p in parameters) + sizes(weights.values()) + sizes(of_states)}", flush=True)


def classify(log, training, steps=5, draw=batch, clip=None, overflows=(), micro_steps=1, accumulates=False, first=0):
    """micro_steps: of a step; accumulates: the script makes them itself, and Castor does otherwise."""
    itself = accumulates or isinstance(training, ByHand)
    for step in range(first, first + steps):
        x, y = draw(step)
        loss = F.cross_entropy(training(x), y)
        if step in overflows:
            loss = loss * 1e6
        training.backward(loss / micro_steps if itself else loss)
        if not itself or (step + 1) % micro_steps == 0:
            more = {} if clip is None else {"norm": training.clip(clip)}
            training.step()
            log.step(loss, **more)
            if step < first + steps - 1:
                training.zero_grad()
        else:
            log.step(loss)


def trained(log, make, dtype):
    training = begin(MLP, make, dtype)
    classify(log, training)
    end(training)


def clipped(log, make, dtype):
    training = begin(lambda: MLP(width=1024), make, dtype)
    classify(log, training, clip=0.5)
    end(training)


def overflowing(log, make, dtype):
    """Steps that float16 leaves out, the first of them before there are states."""
    training = begin(MLP, make, dtype)
    classify(log, training, steps=7, overflows=(0, 3, 4) if dtype is torch.float16 else ())
    end(training)


def accumulated(log, make, dtype):
    """By the script; one of the passes overflows, and the sum with it."""
    training = begin(MLP, make, dtype)
    classify(log, training, steps=12, micro_steps=3, accumulates=True, overflows=(4,) if dtype is torch.float16 else ())
    end(training)


def micro_steps(log, make, dtype):
    """By CASTOR_ACCUMULATE=4."""
    training = begin(MLP, make, dtype)
    classify(log, training, steps=12, micro_steps=4, overflows=(5,) if dtype is torch.float16 else ())
    end(training)


def convolved(log, make, dtype):
    """With batch norms, which stay float."""
    training = begin(Convolutions, make, dtype)
    classify(log, training, draw=images)
    end(training)


def text(log, make, dtype):
    class Logits(GPT):
        def forward(self, x):
            return super().forward(x)[0].flatten(0, 1)

    training = begin(lambda: Logits(context=LENGTH), make, dtype)
    classify(log, training, draw=lambda step: (lambda x, y: (x, y.flatten()))(*tokens(step)), clip=1.0)
    end(training)


def written(log, make, dtype):
    """The script writes parameters, and what state_dict() shows of them."""
    training = begin(MLP, make, dtype)
    for first in (0, 2, 4):
        classify(log, training, steps=2, first=first)
        training.zero_grad()
        training.write("head.weight", lambda t: t[:5].mul_(0.5))
        training.write_shown("enter.weight", lambda t: t.mul_(1.01))
    classify(log, training, steps=2, first=6)
    end(training)


def resumed(log, make, dtype):
    """From a file, by a new model and a new optimizer."""
    training = begin(MLP, make, dtype)
    classify(log, training, steps=3)
    path = os.path.join(log.folder, "checkpoint.pt")
    torch.save({"weights": training.weights(), "states": training.optimizer.state_dict()}, path)
    del training
    checkpoint = torch.load(path, map_location="cpu")
    training = begin(MLP, make, dtype)
    training.load(checkpoint["weights"], checkpoint["states"])
    classify(log, training, steps=3, first=3)
    end(training)


TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
CASES = trained, clipped, overflowing, accumulated, micro_steps, convolved, text, written, resumed


def declare(function, name, dtype):
    def run(log, make):
        function(log, make, dtype)

    run.__name__ = f"{name}_{function.__name__}"
    case(run, optimizers=OPTIMIZERS)


for name, dtype in TYPES.items():
    for function in CASES:
        declare(function, name, dtype)
