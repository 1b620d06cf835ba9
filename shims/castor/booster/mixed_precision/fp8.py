"""Linear layers in 8 bits by torchao, where that library and such a device are."""
import torch

from .bf16 import BF16MixedPrecision

__all__ = ["FP8MixedPrecision"]

_CAPABILITY = (8, 9)  # of the first devices with products of 8-bit floats


class FP8MixedPrecision(BF16MixedPrecision):
    """ImportError: there is no torchao. RuntimeError: there is no such device."""

    def __init__(self):
        try:
            from torchao.float8 import convert_to_float8_training
        except ImportError:
            raise ImportError("castor: mixed precision 'fp8' needs the library torchao, which is not installed: pip install torchao, or use "
                              "'bf16'") from None
        if not torch.cuda.is_available() or torch.cuda.get_device_capability() < _CAPABILITY:
            raise RuntimeError("castor: mixed precision 'fp8' needs a CUDA device of compute capability 8.9 or more: use 'bf16' or 'fp16' here")
        self._convert = convert_to_float8_training

    def configure(self, model, optimizer=None, criterion=None, **clipping):
        self._convert(model)
        return super().configure(model, optimizer, criterion, **clipping)
