"""FusedSGD: torch.optim.SGD with Colossal-AI's arguments."""
import torch

from ...agent.common import separable
from ._base import Checked, loss_of


@separable.declare
class FusedSGD(Checked, torch.optim.SGD):
    """SGD (Colossal-AI: colossalai.nn.optimizer.FusedSGD), with the bits of torch.optim.SGD.

    lr, momentum, dampening, weight_decay, nesterov: as torch.optim.SGD's.
    wd_after_momentum: the decay is not part of the momentum: a step is p - lr * (d + weight_decay * p), where d comes from the
        gradients alone. It is computed as AdamW does: p * (1 - lr * weight_decay), then minus lr * d."""

    def __init__(self, params, lr, momentum=0, dampening=0, weight_decay=0, nesterov=False, wd_after_momentum=False):
        super().__init__(params, lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov)
        self.wd_after_momentum = bool(wd_after_momentum)

    def __getstate__(self):
        return {**super().__getstate__(), "wd_after_momentum": self.wd_after_momentum}

    @torch.no_grad()
    def step(self, closure=None):
        if not self.wd_after_momentum:
            return super().step(closure)
        loss = loss_of(closure)
        decays = [group["weight_decay"] for group in self.param_groups]
        try:
            for group, decay in zip(self.param_groups, decays):
                stepped = [p for p in group["params"] if p.grad is not None]
                if decay and stepped:
                    torch._foreach_mul_(stepped, 1 - group["lr"] * decay)
                group["weight_decay"] = 0
            super().step()
        finally:
            for group, decay in zip(self.param_groups, decays):
                group["weight_decay"] = decay
        return loss
