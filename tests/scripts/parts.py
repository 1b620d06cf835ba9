"""What loops share whose batches are drawn in parts (accumulate_ddp.py)."""

import torch

import record
from model import CLASSES, FEATURES


def samples(count):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(count, FEATURES, generator=generator), torch.randint(0, CLASSES, (count,), generator=generator)


class Parts:
    """Records a step once all parts of its batch are over."""

    def __init__(self, log):
        self.log, self.losses = log, []

    def over(self, loss, model, optimizer):
        """True with the last part."""
        self.losses.append(float(loss.detach()))
        if len(self.losses) < record.parts:
            return False
        self.log.step(sum(self.losses) / record.parts, model, optimizer)
        self.losses.clear()
        return True


def sgd_of(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-2)


def adamw_of(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3, fused=True)
