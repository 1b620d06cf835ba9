"""Adafactor: Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost" (arXiv 1804.04235).

torch.optim.Adafactor has other arguments; these are Colossal-AI's, which are those of transformers."""
import math

import torch

from ...agent.common import separable
from ._base import EachParameter, make_factors, mean_factors, rms


@separable.declare
class Adafactor(EachParameter):
    """Adafactor (Colossal-AI: colossalai.nn.optimizer.Adafactor).

    lr: None with relative_step, whose rate is min(1e-2, 1 / root(step)), or min(1e-6 * step, 1 / root(step)) with warmup_init.
    eps: added to the squares of the gradients, and the least scale of a parameter. clip_threshold: the largest root mean square of an
    update. decay_rate: the mean of the squares at step t counts 1 - t ** decay_rate. beta1: of a mean of the updates; None: there is
    none. scale_parameter: the rate is multiplied by the root mean square of the parameter, at least eps[1]."""

    _optional = ("lr", "beta1")
    _counts = {"eps": 2}

    def __init__(self, params, lr=None, eps=(1e-30, 1e-3), clip_threshold=1.0, decay_rate=-0.8, beta1=None, weight_decay=0.0,
                 scale_parameter=True, relative_step=True, warmup_init=False):
        if relative_step and lr is not None:
            raise ValueError("castor: Adafactor: lr and relative_step=True exclude each other: pass relative_step=False with an lr")
        if not relative_step and lr is None:
            raise ValueError("castor: Adafactor: relative_step=False needs an lr")
        if warmup_init and not relative_step:
            raise ValueError("castor: Adafactor: warmup_init=True needs relative_step=True")
        super().__init__(params, dict(lr=lr, eps=eps, clip_threshold=clip_threshold, decay_rate=decay_rate, beta1=beta1,
                                      weight_decay=weight_decay, scale_parameter=scale_parameter, relative_step=relative_step,
                                      warmup_init=warmup_init))

    def _begin(self, p, state, group):
        if group["beta1"] is not None:
            state["exp_avg"] = torch.zeros_like(p)
        if p.dim() >= 2:
            make_factors(p, state, "exp_avg_sq")
        else:
            state["exp_avg_sq"] = torch.zeros_like(p)

    def _update(self, p, grad, state, group):
        step, rate, eps = state["step"].item(), group["lr"], group["eps"]
        if group["relative_step"]:
            rate = min(1e-6 * step if group["warmup_init"] else 1e-2, 1.0 / math.sqrt(step))
        if group["scale_parameter"]:
            rate = rms(p).clamp_(min=eps[1]) * rate
        beta2 = 1.0 - step ** group["decay_rate"]
        squares = grad.square() + eps[0]
        if p.dim() >= 2:
            update = mean_factors(squares, state, "exp_avg_sq", beta2).mul_(grad)
        else:
            update = state["exp_avg_sq"].mul_(beta2).add_(squares, alpha=1.0 - beta2).rsqrt().mul_(grad)
        update.div_((rms(update) / group["clip_threshold"]).clamp_(min=1.0)).mul_(rate)
        if group["beta1"] is not None:
            update = state["exp_avg"].mul_(group["beta1"]).add_(update, alpha=1 - group["beta1"])
        if group["weight_decay"] != 0:
            p.mul_(1 - group["weight_decay"] * rate)
        p.sub_(update)
