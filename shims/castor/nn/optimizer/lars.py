"""Lars: You et al., "Large Batch Training of Convolutional Networks" (arXiv 1708.03888)."""
import torch

from ...agent.common import separable
from ._base import EachParameter


@separable.declare
class Lars(EachParameter):
    """Lars (Colossal-AI: colossalai.nn.optimizer.Lars). A group with lars=False gets plain SGD with momentum, without decay.

    The learning rate is multiplied by eeta * |p| / (|grad| + weight_decay * |p| + epsilon), at most 50 (by 1 where a norm is 0);
    the gradient with its decay is clamped to -10..10, as Colossal-AI does."""

    def __init__(self, params, lr=1e-3, momentum=0, eeta=1e-3, weight_decay=0, epsilon=0.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, eeta=eeta, epsilon=epsilon, lars=True))

    def _update(self, p, grad, state, group):
        decay, rate = group["weight_decay"], group["lr"]
        if group["lars"]:
            weight_norm, grad_norm = p.norm(2), grad.norm(2)
            ratio = group["eeta"] * weight_norm / (grad_norm + decay * weight_norm + group["epsilon"])
            rate = rate * torch.where((weight_norm > 0) & (grad_norm > 0), ratio, torch.ones_like(ratio)).clamp(max=50.0)
            if decay != 0:
                grad = grad.add(p, alpha=decay)
        change = grad.clamp(-10.0, 10.0)
        if group["momentum"] != 0:
            if "momentum_buffer" in state:
                state["momentum_buffer"].mul_(group["momentum"]).add_(change)
            else:
                state["momentum_buffer"] = change.clone()
            change = state["momentum_buffer"]
        p.sub_(change * rate)
