"""CAME: Luo et al., "CAME: Confidence-guided Adaptive Memory Efficient Optimization" (arXiv 2307.02047)."""
import torch

from ...agent.common import separable
from ._base import EachParameter, make_factors, mean_factors, rms


@separable.declare
class CAME(EachParameter):
    """CAME (Colossal-AI: colossalai.nn.optimizer.CAME). Parameters of two dimensions and more have their squares in two factors.

    eps: added to the squares of the gradients, and of the deviations. betas: of the mean update, the squares, the deviations.
    clip_threshold: the largest root mean square of an update."""

    _counts = {"betas": 3, "eps": 2}

    def __init__(self, params, lr=None, eps=(1e-30, 1e-16), clip_threshold=1.0, betas=(0.9, 0.999, 0.9999), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, eps=eps, clip_threshold=clip_threshold, betas=betas, weight_decay=weight_decay))

    def _begin(self, p, state, group):
        state["exp_avg"] = torch.zeros_like(p)
        if p.dim() >= 2:
            make_factors(p, state, "exp_avg_sq")
            make_factors(p, state, "exp_avg_res")
        else:
            state["exp_avg_sq"] = torch.zeros_like(p)

    def _update(self, p, grad, state, group):
        (beta1, beta2, beta3), (eps_square, eps_deviation) = group["betas"], group["eps"]
        squares = grad.square() + eps_square
        if p.dim() >= 2:
            update = mean_factors(squares, state, "exp_avg_sq", beta2).mul_(grad)
        else:
            update = state["exp_avg_sq"].mul_(beta2).add_(squares, alpha=1.0 - beta2).rsqrt().mul_(grad)
        update.div_((rms(update) / group["clip_threshold"]).clamp_(min=1.0))
        mean = state["exp_avg"].mul_(beta1).add_(update, alpha=1 - beta1)
        if p.dim() >= 2:
            deviations = (update - mean).square_() + eps_deviation
            change = mean_factors(deviations, state, "exp_avg_res", beta3).mul_(mean)
        else:
            change = mean
        if group["weight_decay"] != 0:
            p.mul_(1 - group["lr"] * group["weight_decay"])
        p.add_(change, alpha=-group["lr"])
