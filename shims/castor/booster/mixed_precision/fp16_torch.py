"""PyTorch's autocast in float16, with its GradScaler."""
import functools

import torch

from ...accelerator import get_accelerator
from ...interface import ModelWrapper, OptimizerWrapper
from .mixed_precision_base import MixedPrecision

__all__ = ["FP16TorchMixedPrecision", "TorchAMPModule", "TorchAMPOptimizer"]


class TorchAMPOptimizer(OptimizerWrapper):
    """An optimizer whose losses a GradScaler scales.

    Args: optim; init_scale, growth_factor, backoff_factor, growth_interval: the GradScaler's; max_norm, norm_type: OptimizerWrapper's."""

    def __init__(self, optim, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, max_norm=0.0, norm_type=2.0):
        super().__init__(optim, max_norm, norm_type)
        self.scaler = torch.amp.GradScaler(get_accelerator().name, init_scale, growth_factor, backoff_factor, growth_interval)
        self._scaled = self._unscaled = False  # the gradients have the scale; the scaler has taken it off since the last step

    def scale_loss(self, loss):
        if self._unscaled:
            raise RuntimeError("castor: the loss scale was taken off the gradients (by clipping, or to show their norm), and another backward would add "
                               "scaled ones: clip after the last backward of a step; or zero_grad() first")
        self._scaled = True
        return self.scaler.scale(loss)

    def backward_by_grad(self, tensor, grad, inputs=None, retain_graph=False):
        grad = [self.scale_loss(each) for each in grad] if isinstance(grad, (list, tuple)) else self.scale_loss(grad)
        return super().backward_by_grad(tensor, grad, inputs, retain_graph)

    def unscale_grad(self):
        if self._scaled and any(p.grad is not None for p in self.parameters):
            self.scaler.unscale_(self.unwrap())
            self._scaled, self._unscaled = False, True

    def get_grad_norm(self, norm_type=2.0, **kwargs):
        self.unscale_grad()
        return super().get_grad_norm(norm_type, **kwargs)

    def step(self, *args, **kwargs):
        """Steps, unless a gradient is not finite; then the scale becomes smaller. RuntimeError: gradients of a loss without the scale."""
        self._check_frozen()
        if not (self._scaled or self._unscaled) and any(p.grad is not None for p in self.parameters):
            raise RuntimeError("castor: under fp16 losses are scaled, and these gradients are of none that this optimizer scaled: call "
                               "booster.backward(loss, optimizer) before each step, instead of loss.backward()")
        if self._max_norm > 0:
            self.clip_grad_by_norm(self._max_norm, self._norm_type)
        result = self.scaler.step(self.unwrap(), *args, **kwargs)
        self.scaler.update()
        self._scaled = self._unscaled = False
        return result

    def zero_grad(self, *args, **kwargs):
        if self._unscaled:
            self.scaler.update()  # these gradients are dropped without a step
        self._scaled = self._unscaled = False
        return super().zero_grad(*args, **kwargs)


class TorchAMPModule(ModelWrapper):
    """A model that runs in autocast. Its outputs have the types that autocast gives them."""

    def __init__(self, module, dtype=torch.float16):
        super().__init__(module)
        self._dtype = dtype

    def forward(self, *args, **kwargs):
        with torch.autocast(get_accelerator().name, dtype=self._dtype):
            return self.module(*args, **kwargs)


def autocast_criterion(criterion, dtype):
    """A loss that is computed in autocast, which computes PyTorch's losses in float."""
    if criterion is None:
        return None
    if isinstance(criterion, torch.nn.Module):
        return TorchAMPModule(criterion, dtype)

    @functools.wraps(criterion)
    def in_autocast(*args, **kwargs):
        with torch.autocast(get_accelerator().name, dtype=dtype):
            return criterion(*args, **kwargs)

    return in_autocast


class FP16TorchMixedPrecision(MixedPrecision):
    """Args: init_scale, growth_factor, backoff_factor, growth_interval: the GradScaler's."""

    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self._scaler = {"init_scale": init_scale, "growth_factor": growth_factor, "backoff_factor": backoff_factor, "growth_interval": growth_interval}

    def configure(self, model, optimizer=None, criterion=None, **clipping):
        if optimizer is not None:
            optimizer = TorchAMPOptimizer(getattr(optimizer, "optim", optimizer), **self._scaler, **clipping)
        return TorchAMPModule(model), optimizer, autocast_criterion(criterion, torch.float16)
