"""What a tensor is for (Colossal-AI: colossalai.tensor.const)."""
import enum

__all__ = ["TensorType"]


class TensorType(enum.Enum):
    MODEL = 0  # a parameter
    NONMODEL = 1  # an activation, an input
