"""Graphs of many kinds, whose backward in two passes must give what one pass gives, and call the same hooks of parameters."""
import copy

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from castor.engine._split_backward import SplitBackward, splits


class Chain(nn.Module):
    """Two linear layers, `between` and `around` them."""

    def __init__(self, around=lambda function, x: function(x), between=torch.tanh):
        super().__init__()
        self.first, self.second, self.around, self.between = nn.Linear(8, 8), nn.Linear(8, 8), around, between

    def forward(self, x):
        return self.around(lambda x: self.second(self.between(self.first(x))), x)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))


class Shared(nn.Module):
    """Products whose factors are made of the same parameters."""

    def __init__(self):
        super().__init__()
        self.v, self.w, self.u, self.unused = (nn.Parameter(torch.randn(8)) for _ in range(4))

    def forward(self, x):
        return x * torch.exp(self.w) * self.v.sigmoid() + x * x * self.v.cos() + x + self.u.sum()


class Several(nn.Module):
    """Operators with several results."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.w = nn.Linear(8, 8), nn.Linear(8, 8), nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        a, b = torch.unbind(torch.stack([self.first(x), self.second(x)]))
        c, d = (torch.cat([a, b], 1) @ torch.cat([self.w, self.w.cos()], 0)).chunk(2, 1)
        return c.softmax(-1).sum(-1, keepdim=True) * d


class Recurrent(nn.LSTM):
    def forward(self, x):
        return super().forward(x)[0]


class Apart(nn.Module):
    """The results are two; one comes from a parameter alone."""

    def __init__(self):
        super().__init__()
        self.layer, self.w = nn.Linear(8, 8), nn.Parameter(torch.randn(8))

    def forward(self, x):
        return self.layer(x), self.w * 2


def hooked(x):
    """What was given, and what is made of it, have hooks that change the gradient."""
    x.register_hook(lambda gradient: gradient * 3)
    x.grad_fn.register_prehook(lambda gradients: (gradients[0] * 2,))
    made = torch.tanh(x)
    made.register_hook(lambda gradient: gradient * 5)
    return made


# name: (the model, its input's shape, whether its second pass runs operators with parameters alone)
CASES = {
    "layers": (lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8)), (4, 8), True),
    "images": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 8)), (4, 1, 8, 8), True),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True), (4, 5, 8), True),
    "hooks": (lambda: Chain(between=hooked), (4, 8), True),
    "checkpoint": (lambda: Chain(lambda function, x: checkpoint(function, x, use_reentrant=False), lambda x: torch.dropout(x, 0.5, True)), (4, 8), True),
    "a weight twice": (Twice, (4, 8), False),
    "shared": (Shared, (4, 8), False),
    "several": (Several, (4, 8), None),
    "recurrent": (lambda: Recurrent(8, 8), (4, 3, 8), None),
    "apart": (Apart, (4, 8), False),
}


def passes(model, x, split):
    """(the input's gradient, the parameters' after two microbatches, the parameters' hooks that ran, whether operators ran alone)."""
    model, calls, alone = copy.deepcopy(model), [], None
    torch.manual_seed(5)
    for name, p in model.named_parameters():
        p.register_hook(lambda gradient, name=name: calls.append(name) or 2 * gradient)
        p.register_post_accumulate_grad_hook(lambda p, name=name: calls.append(f"{name}, accumulated"))
    for _ in range(2):
        given = x.clone().requires_grad_()
        made = model(given)
        made = list(made) if isinstance(made, tuple) else [made]
        gradients = [torch.randn(one.shape, generator=torch.Generator().manual_seed(1), dtype=one.dtype) for one in made]
        if not split:
            torch.autograd.backward(made, gradients)
            of_input = given.grad
            continue
        one = SplitBackward(made, gradients, [given])
        before, alone = [p.grad for p in model.parameters()], one._kept is not None
        del made
        one.finish()
        of_input = one.of_inputs[0]
        if given.grad is not None or all(a is p.grad for a, p in zip(before, model.parameters())) and len(calls) < 2:
            raise AssertionError("the passes did not make one half each")
    return of_input, [p.grad for p in model.parameters()], sorted(calls), alone


def run():
    """[what differs]."""
    wrong, kind = [], torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    for name, (make, shape, alone) in CASES.items():
        torch.manual_seed(1)
        model, x = make(), torch.randn(shape)
        if not splits([model(x)[0]]):
            wrong.append(f"{name}: is not split")
        expected, got = passes(model, x, False), passes(model, x, True)
        gradients = zip([expected[0], *expected[1]], [got[0], *got[1]], strict=True)
        if not all((a is None) == (b is None) and (a is None or torch.allclose(a, b, rtol=1e-12, atol=1e-12)) for a, b in gradients):
            wrong.append(f"{name}: other gradients")
        if expected[2] != got[2]:
            wrong.append(f"{name}: other hooks: {got[2]} instead of {expected[2]}")
        if alone is not None and got[3] != alone:
            wrong.append(f"{name}: operators with parameters {'alone' if got[3] else 'and others'}")
    torch.set_default_dtype(kind)
    return wrong
