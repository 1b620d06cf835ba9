"""Lamb and FusedLAMB: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes" (arXiv 1904.00962)."""
import torch

from ...agent.common import separable
from ...utils.optimizer_wrapper import clip_by_norm
from ._base import EachParameter, SetGradNone, loss_of


def _begin_means(p, state):
    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)


def _trust_ratio(p, update):
    """|p| / |update|; 1 where one of them is 0. A tensor of one number."""
    weight_norm, update_norm = p.norm(2), update.norm(2)
    return torch.where((weight_norm > 0) & (update_norm > 0), weight_norm / update_norm, torch.ones_like(weight_norm))


@separable.declare
class Lamb(EachParameter):
    """Lamb (Colossal-AI: colossalai.nn.optimizer.Lamb): Adam's update plus weight_decay * p, scaled to the norm of p.

    bias_correction: scales the learning rate by root(1 - beta2 ** step) / (1 - beta1 ** step). adam: the trust ratio is 1."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0, adam=False, bias_correction=False):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, adam=bool(adam), bias_correction=bool(bias_correction)))

    @property
    def adam(self):
        return self.defaults["adam"]

    def _begin(self, p, state, group):
        _begin_means(p, state)

    def _update(self, p, grad, state, group):
        (beta1, beta2), lr, step = group["betas"], group["lr"], state["step"].item()
        mean = state["exp_avg"].mul_(beta1).add_(grad, alpha=1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        if group["bias_correction"]:
            lr = lr * (1 - beta2**step) ** 0.5 / (1 - beta1**step)
        update = mean / (square.sqrt() + group["eps"])
        if group["weight_decay"] != 0:
            update.add_(p, alpha=group["weight_decay"])
        if not group["adam"]:
            update.mul_(_trust_ratio(p, update))
        p.add_(update, alpha=-lr)


@separable.declare
class FusedLAMB(SetGradNone, EachParameter):
    """Lamb as NVIDIA's Apex has it (Colossal-AI: colossalai.nn.optimizer.FusedLAMB).

    A step takes the gradients scaled down to a total norm of max_grad_norm (0: as they are), and does not change them. bias_correction:
    the means are divided by 1 - beta ** step. adam_w_mode: weight_decay * p is added to the update; else to the gradient.
    grad_averaging: the new gradient counts 1 - beta1 in its mean; else 1. use_nvlamb: the trust ratio also counts for parameters
    without weight decay. set_grad_none: what zero_grad() does when it is not told. amsgrad: RuntimeError."""

    _scale = 1.0  # of the gradients of the running step

    def __init__(self, params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01, amsgrad=False,
                 adam_w_mode=True, grad_averaging=True, set_grad_none=True, max_grad_norm=1.0, use_nvlamb=False):
        if amsgrad:
            raise RuntimeError("castor: FusedLAMB has no AMSGrad variant: leave amsgrad at False")
        super().__init__(params, dict(lr=lr, bias_correction=bool(bias_correction), betas=betas, eps=eps, weight_decay=weight_decay,
                                      grad_averaging=bool(grad_averaging), max_grad_norm=max_grad_norm, adam_w_mode=bool(adam_w_mode),
                                      use_nvlamb=bool(use_nvlamb)))
        self.set_grad_none = bool(set_grad_none)

    @torch.no_grad()
    def step(self, closure=None):
        loss = loss_of(closure)
        most = self.defaults["max_grad_norm"]
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        self._scale = 1.0
        if most and parameters:
            norm = clip_by_norm(parameters, float("inf")).item()  # clips nothing; under a plugin owners compute it
            self._scale = min(most / norm, 1.0) if norm else 1.0
        super().step()
        return loss

    # The norm is of all gradients, which every rank has here: only what super() does is the owners'.
    step.castor_separable = True

    def _begin(self, p, state, group):
        _begin_means(p, state)

    def _update(self, p, grad, state, group):
        (beta1, beta2), decay, step = group["betas"], group["weight_decay"], state["step"].item()
        if self._scale != 1.0:
            grad = grad * self._scale
        if decay and not group["adam_w_mode"]:
            grad = grad.add(p, alpha=decay)
        mean = state["exp_avg"].mul_(beta1).add_(grad, alpha=1 - beta1 if group["grad_averaging"] else 1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        if group["bias_correction"]:
            mean, square = mean / (1 - beta1**step), square / (1 - beta2**step)
        update = mean / (square.sqrt() + group["eps"])
        if decay and group["adam_w_mode"]:
            update.add_(p, alpha=decay)
        if decay or group["use_nvlamb"]:
            update.mul_(_trust_ratio(p, update))
        p.add_(update, alpha=-group["lr"])
