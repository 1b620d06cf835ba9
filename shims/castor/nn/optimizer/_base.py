"""What the optimizers here share: checks of their numbers, and steps of one parameter after another."""
import math

import torch
from torch.optim import Optimizer

from ...agent.common import separable

_AT_LEAST_0 = (lambda x: 0.0 <= x < math.inf), "a number of 0 or more"
_BELOW_1 = (lambda x: 0.0 <= x < 1.0), "numbers from 0 to below 1"
_ABOVE_0 = (lambda x: 0.0 < x < math.inf), "a number above 0"
_RANGES = {
    "lr": _AT_LEAST_0, "eps": _AT_LEAST_0, "epsilon": _AT_LEAST_0, "weight_decay": _AT_LEAST_0, "momentum": _AT_LEAST_0,
    "betas": _BELOW_1, "beta1": _BELOW_1, "clip_threshold": _ABOVE_0, "max_grad_norm": _AT_LEAST_0,
    "eeta": ((lambda x: 0.0 < x <= 1.0), "a number above 0 and up to 1"),
}


class Checked(Optimizer):
    """Refuses numbers out of range, of the defaults and of each parameter group."""

    _optional = ()  # hyperparameters that may be None
    _counts = {"betas": 2}  # how many numbers a hyperparameter has, where it is not one

    def add_param_group(self, param_group):
        if isinstance(param_group, dict):
            for key, value in {**self.defaults, **param_group}.items():
                self._check(key, value)
        super().add_param_group(param_group)

    def _check(self, key, value):
        if key not in _RANGES or value is None and key in self._optional:
            return
        within, expected = _RANGES[key]
        count = self._counts.get(key)
        try:
            good = within(value) if count is None else len(value) == count and all(map(within, value))
        except TypeError:
            good = False
        if not good:
            raise ValueError(f"castor: {type(self).__name__}: {key} is {value!r}: expected {f'{count}: ' if count else ''}{expected}")


class SetGradNone:
    """`set_grad_none`: what zero_grad() does when it is not told: gradients become None, or zero."""

    def __getstate__(self):
        return {**super().__getstate__(), "set_grad_none": self.set_grad_none}

    def zero_grad(self, set_to_none=None):
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)


def loss_of(closure):
    """The loss of a step's closure, which makes the gradients; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


@separable.declare
class EachParameter(Checked):
    """A step is `_update` of each parameter that has a gradient. `state["step"]` counts them, in a tensor as torch.optim's does."""

    @torch.no_grad()
    def step(self, closure=None):
        """Steps each parameter that has a gradient. `closure`: makes the gradients and returns the loss, which step() returns."""
        loss = loss_of(closure)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if p.grad.is_sparse:
                    raise RuntimeError(f"castor: {type(self).__name__} does not step sparse gradients: use torch.optim.SparseAdam for them")
                state = self.state[p]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    self._begin(p, state, group)
                state["step"] += 1
                if p.numel():
                    self._update(p, p.grad, state, group)
        return loss

    def _begin(self, p, state, group):
        """Adds the states of a parameter before its first step."""

    def _update(self, p, grad, state, group):
        raise NotImplementedError

    def __setstate__(self, state):
        """Counts of a checkpoint of Colossal-AI are numbers."""
        super().__setstate__(state)
        for kept in self.state.values():
            if "step" in kept and not isinstance(kept["step"], torch.Tensor):
                kept["step"] = torch.tensor(float(kept["step"]))


def rms(tensor):
    """The root of the mean square, a tensor of one number."""
    return tensor.norm(2) / math.sqrt(tensor.numel())


def roots_of_factors(row, column):
    """1 / root of a matrix of squares, of which the means of the rows and of the columns are known (Adafactor, section 3)."""
    return (row / row.mean(dim=-1, keepdim=True)).rsqrt().unsqueeze(-1) * column.rsqrt().unsqueeze(-2)


def make_factors(p, state, name):
    """The states `name`_row and `name`_col: means over the last dimension, and over the one before."""
    state[name + "_row"] = p.new_zeros(p.shape[:-1])
    state[name + "_col"] = p.new_zeros(p.shape[:-2] + p.shape[-1:])


def mean_factors(squares, state, name, beta):
    """Moves the factors' means towards those of `squares`, and returns roots_of_factors of them."""
    row, column = state[name + "_row"], state[name + "_col"]
    row.mul_(beta).add_(squares.mean(dim=-1), alpha=1.0 - beta)
    column.mul_(beta).add_(squares.mean(dim=-2), alpha=1.0 - beta)
    return roots_of_factors(row, column)
