"""PyTorch's autocast in bfloat16, whose range needs no scale."""
import torch

from ...interface import OptimizerWrapper
from .fp16_torch import TorchAMPModule, autocast_criterion
from .mixed_precision_base import MixedPrecision

__all__ = ["BF16MixedPrecision"]


class BF16MixedPrecision(MixedPrecision):
    def configure(self, model, optimizer=None, criterion=None, **clipping):
        if optimizer is not None and (clipping or not isinstance(optimizer, OptimizerWrapper)):
            optimizer = OptimizerWrapper(getattr(optimizer, "optim", optimizer), **clipping)
        return TorchAMPModule(model, torch.bfloat16), optimizer, autocast_criterion(criterion, torch.bfloat16)
