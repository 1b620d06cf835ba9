"""NVIDIA apex's mixed precision, where that library is."""
import torch

from ...interface import ModelWrapper, OptimizerWrapper
from .mixed_precision_base import MixedPrecision

__all__ = ["FP16ApexMixedPrecision"]


class _ApexOptimizer(OptimizerWrapper):
    def scale_loss(self, loss):
        raise RuntimeError("castor: apex scales losses inside backward(): call optimizer.backward(loss)")

    def backward(self, loss, inputs=None, retain_graph=False, **kwargs):
        from apex import amp

        with amp.scale_loss(loss, self.unwrap()) as scaled:
            scaled.backward(inputs=inputs, retain_graph=retain_graph, **kwargs)


class FP16ApexMixedPrecision(MixedPrecision):
    """Args: opt_level and the others: apex.amp.initialize's. ImportError: there is no apex. RuntimeError: there is no CUDA device."""

    def __init__(self, opt_level="O1", **more):
        try:
            import apex.amp  # noqa: F401
        except ImportError:
            raise ImportError("castor: mixed precision 'fp16_apex' needs NVIDIA's library apex, which is not installed: install it, or use 'fp16', "
                              "which is PyTorch's own") from None
        if not torch.cuda.is_available():
            raise RuntimeError("castor: mixed precision 'fp16_apex' needs a CUDA device: use 'bf16' or 'fp16' here")
        self._initialize = {"opt_level": opt_level, **more}

    def configure(self, model, optimizer=None, criterion=None):
        from apex import amp

        if optimizer is None:
            return ModelWrapper(amp.initialize(model, **self._initialize)), None, criterion
        model, optimizer = amp.initialize(model, getattr(optimizer, "optim", optimizer), **self._initialize)
        return ModelWrapper(model), _ApexOptimizer(optimizer), criterion
