"""Operators with a form of their own on ColoTensors (Colossal-AI: colossalai.tensor.op_wrapper)."""

__all__ = ["colo_op_impl"]

_COLOSSAL_OPS = {}  # PyTorch's function: what computes it


def colo_op_impl(func):
    """Decorates the function that computes PyTorch's `func` where an operand is a ColoTensor. It gets func's arguments."""

    def register(implementation):
        _COLOSSAL_OPS[func] = implementation
        return implementation

    return register
