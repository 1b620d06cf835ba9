"""Mixed precision, as objects and by name (Colossal-AI: colossalai.booster.mixed_precision)."""
from .bf16 import BF16MixedPrecision
from .fp8 import FP8MixedPrecision
from .fp16_apex import FP16ApexMixedPrecision
from .fp16_naive import FP16NaiveMixedPrecision
from .fp16_torch import FP16TorchMixedPrecision
from .mixed_precision_base import MixedPrecision

__all__ = [
    "BF16MixedPrecision", "FP16ApexMixedPrecision", "FP16NaiveMixedPrecision", "FP16TorchMixedPrecision", "FP8MixedPrecision", "MixedPrecision",
    "mixed_precision_factory",
]

_NAMED = {"fp16": FP16TorchMixedPrecision, "fp16_apex": FP16ApexMixedPrecision, "fp16_naive": FP16NaiveMixedPrecision, "bf16": BF16MixedPrecision,
          "fp8": FP8MixedPrecision}


def class_named(name):
    """The class of a mixed precision. ValueError: there is none of that name."""
    if name not in _NAMED:
        raise ValueError(f"castor: there is no mixed precision {name!r}: expected one of {', '.join(map(repr, _NAMED))}, or a "
                         "castor.booster.mixed_precision.MixedPrecision")
    return _NAMED[name]


def mixed_precision_factory(mixed_precision_type):
    """The object for a name. ValueError: there is none of that name."""
    return class_named(mixed_precision_type)()
