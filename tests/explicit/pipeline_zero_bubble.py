"""The zero-bubble schedule on each rank, beside the whole model; what runs when, and hooks."""
import os

import torch
import torch.nn.functional as F
from torch import nn

import castor
from castor.engine import schedule as schedules
from castor.engine._parallel_groups import groups

MICROBATCHES = 4


class Recorded(schedules.ZeroBubblePipelineSchedule):
    def _run(self, *arguments):
        self.passes = []
        super()._run(*arguments)

    def forward_step(self, *arguments):
        self.passes.append("F")
        return super().forward_step(*arguments)

    def backward_input_step(self, *arguments):
        self.passes.append("B")
        return super().backward_input_step(*arguments)

    def backward_weight_step(self, *arguments):
        self.passes.append("W")
        return super().backward_weight_step(*arguments)

    def backward_step(self, *arguments):
        self.passes.append("whole")
        return super().backward_step(*arguments)


class Twice(torch.autograd.Function):
    """Its backward may not run twice."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Layer(nn.Linear):
    """Adds a leaf that is no parameter. Its activation has a hook that changes the gradient."""

    def __init__(self, own, again):
        super().__init__(8, 8, dtype=torch.float64)
        self.own, self.again, self.other = own, again, torch.zeros(8, dtype=torch.float64, requires_grad=True)

    def forward(self, x):
        x = super().forward(x) + self.other
        if x.requires_grad:
            x.register_hook(lambda gradient: 3 * gradient)
        x = super().forward(torch.tanh(x)) if self.again else x
        return Twice.apply(x) if self.own else x


class OwnBackward(torch.optim.SGD):
    """Has a backward of its own, as optimizers with a loss scale."""

    def backward(self, loss):
        loss.backward()

    def backward_by_grad(self, tensor, gradient):
        torch.autograd.backward(tensor, gradient)


def one_batch(cls, own=False, again=False, optimizer=torch.optim.SGD, frozen=()):
    """(the schedule, the hooks that ran, all gradients of the stage, with what its first layer's other leaf got)."""
    stage_number, calls = groups().stage, []
    torch.manual_seed(1 + stage_number)
    stage = nn.Sequential(Layer(own, again), nn.Tanh(), nn.Linear(8, 8, dtype=torch.float64))
    if stage_number in frozen:
        stage.requires_grad_(False)
        stage[0].other.requires_grad_(False)
    else:
        stage[0].weight.register_hook(lambda gradient: calls.append("gradient"))
        stage[0].weight.register_post_accumulate_grad_hook(lambda p: calls.append("accumulated"))
    engine, *_ = castor.initialize(stage, optimizer(stage.parameters(), lr=0.1), F.mse_loss, schedule=cls(MICROBATCHES), verbose=False)
    data = torch.randn(2, 12, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    engine.execute_schedule(iter([data]))
    return engine.schedule, calls, [p.grad for p in [*stage.parameters(), stage[0].other]]


def alike(gradients, reference):
    """Bit for bit: the same operations in the same order."""
    return all((a is None) == (b is None) and (a is None or torch.equal(a, b)) for a, b in zip(gradients, reference, strict=True))


def run(train, kinds):
    """What the tests look at. `train` and `kinds` are pipeline_rank.py's."""
    sequential, tied, nested, images, square = kinds
    more = {"cls": schedules.ZeroBubblePipelineSchedule}
    whole = os.environ.get("TEST_LENGTH") == "all"
    for microbatches in (1, 2, 3, 4, 6, 12) if whole else (1, 3, 12):
        for optimizer in ("sgd", "adamw") if whole or microbatches == 3 else ("adamw",):
            train(sequential, optimizer, microbatches, **more)
    for kind in (tied, nested, images):
        for optimizer in ("sgd", "adamw") if whole else ("sgd",):
            train(kind, optimizer, 6, **more)
    train(tied, "sgd", 3, clipped=0.1, **more)
    train(square, "sgd", 4, tensor_shape=(3, 8), **more)
    said = {}
    cases = {"usual": {}, "weight twice": {"again": True}, "own function": {"own": True}, "own backward": {"optimizer": OwnBackward}, "frozen": {"frozen": (1,)}}
    for name, arguments in cases.items():
        schedule, calls, gradients = one_batch(Recorded, **arguments)
        _, usual, reference = one_batch(schedules.PipelineSchedule, **arguments)
        said[name] = [schedule.passes, calls, calls == usual, alike(gradients, reference), sum(g is not None for g in gradients)]
    return said
