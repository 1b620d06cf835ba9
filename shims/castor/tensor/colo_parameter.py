"""A ColoTensor that is a module's parameter (Colossal-AI: colossalai.tensor.colo_parameter)."""
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from .colo_tensor import ColoTensor
from .const import TensorType
from .param_op_hook import ColoParamOpHookManager

__all__ = ["ColoParameter"]


class ColoParameter(ColoTensor, torch.nn.Parameter):
    """A ColoTensor and an nn.Parameter.

    Args:
        data: this rank's block, a torch.Tensor; None: an empty one.
        requires_grad: it gets a gradient, which has this rank's block, too.
        spec: a ColoTensorSpec; by default ProcessGroup() and Replica."""

    def __new__(cls, data=None, requires_grad=True, spec=None):
        with torch._C.DisableTorchFunctionSubclass():
            return torch.Tensor._make_subclass(cls, torch.empty(0) if data is None else data, requires_grad)

    def __init__(self, data=None, requires_grad=True, spec=None):
        self._set(spec)
        self._type = TensorType.MODEL

    @staticmethod
    def from_torch_tensor(tensor, requires_grad=True, spec=None):
        return ColoParameter(tensor, requires_grad, spec)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if not ColoParamOpHookManager.has_hook() or name.startswith("__") and name not in _OPERATORS:
            return super().__torch_function__(func, types, args, kwargs)
        leaves, tree = tree_flatten((args, kwargs or {}))
        parameters = list(dict.fromkeys(leaf for leaf in leaves if isinstance(leaf, ColoParameter)))
        if not parameters:
            return super().__torch_function__(func, types, args, kwargs)
        operands = ColoParamOpHookManager.pre_op(parameters, leaves)
        args, kwargs = tree_unflatten(operands, tree)
        return ColoParamOpHookManager.post_op(parameters, operands, super().__torch_function__(func, types, args, kwargs))


_OPERATORS = {f"__{form}{name}__" for form in ("", "r", "i") for name in ("add", "sub", "mul", "truediv", "matmul", "pow", "floordiv", "mod")} | {"__neg__"}
