"""Parameters and gradients in float16, with float masters: CASTOR_PRECISION=fp16."""
from ...interface import OptimizerWrapper
from .mixed_precision_base import MixedPrecision

__all__ = ["FP16NaiveMixedPrecision"]


class FP16NaiveMixedPrecision(MixedPrecision):
    """Args: initial_scale, growth_factor, backoff_factor, growth_interval, hysteresis, max_scale: the loss scale's. log_num_zeros_in_grad,
    verbose: accepted; the log tells of each overflow."""

    engine_precision = "fp16"

    def __init__(self, log_num_zeros_in_grad=False, initial_scale=2**32, growth_factor=2, backoff_factor=0.5, hysteresis=2, max_scale=2**32,
                 verbose=False, growth_interval=1000):
        self.scale = {"scale": initial_scale, "growth": growth_factor, "backoff": backoff_factor, "interval": growth_interval, "hysteresis": hysteresis,
                      "largest": max_scale}

    def configure(self, model, optimizer=None, criterion=None):
        if optimizer is not None and not isinstance(optimizer, OptimizerWrapper):
            optimizer = OptimizerWrapper(optimizer)
        return model, optimizer, criterion
