"""Hooks on operators that use ColoParameters (Colossal-AI: colossalai.tensor.param_op_hook)."""
import abc
import contextlib

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from .colo_tensor import ColoTensor

__all__ = ["ColoParamOpHook", "ColoParamOpHookManager"]


class ColoParamOpHook(abc.ABC):
    """Called around each operator of which an operand is a ColoParameter. `params`: these, in the order of the operands, each once."""

    @abc.abstractmethod
    def pre_forward(self, params):
        pass

    @abc.abstractmethod
    def post_forward(self, params):
        pass

    @abc.abstractmethod
    def pre_backward(self, params):
        """Before the operator's gradient is computed; not called if it has none."""

    @abc.abstractmethod
    def post_backward(self, params):
        """After the gradients of the operands were computed."""


class ColoParamOpHookManager:
    """Static methods only; the one to call is use_hooks()."""

    hooks = ()

    @staticmethod
    @contextlib.contextmanager
    def use_hooks(*hooks):
        """Inside, these hooks are called, in this order, and those of an outer call are not; without hooks, none is."""
        outer, ColoParamOpHookManager.hooks = ColoParamOpHookManager.hooks, tuple(hooks)
        try:
            yield
        finally:
            ColoParamOpHookManager.hooks = outer

    @staticmethod
    def has_hook():
        return bool(ColoParamOpHookManager.hooks)

    @staticmethod
    def pre_op(params, operands):
        """The operands of an operator, to be used in place of `operands` (a list), after pre_forward()."""
        hooks = ColoParamOpHookManager.hooks
        for hook in hooks:
            hook.pre_forward(params)
        return _through(hooks, "post_backward", params, operands, ())

    @staticmethod
    def post_op(params, operands, result):
        """The result of an operator on `operands`, to be used in place of `result`, after post_forward()."""
        hooks = ColoParamOpHookManager.hooks
        for hook in hooks:
            hook.post_forward(params)
        leaves, tree = tree_flatten(result)
        return tree_unflatten(_through(hooks, "pre_backward", params, leaves, operands), tree)


def _through(hooks, when, params, values, kept):
    """`values`, with those that need a gradient passed through one node of the graph, whose backward calls the hooks' method `when`. Values
    in `kept` stay what they are."""
    places = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor) and value.requires_grad and not any(value is k for k in kept)]
    if not places or not torch.is_grad_enabled():
        return values

    def called():
        for hook in hooks:
            getattr(hook, when)(params)

    values = list(values)
    for i, passed in zip(places, _Passed.apply(called, *(_local(values[i]) for i in places))):
        like = values[i]
        values[i] = ColoTensor.from_torch_tensor(passed, like.get_tensor_spec()) if isinstance(like, ColoTensor) else passed
    return values


def _local(tensor):
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor) if isinstance(tensor, ColoTensor) else tensor


class _Passed(torch.autograd.Function):
    """Tensors as they are. Its backward calls `called`, when the gradients of all of them are there."""

    @staticmethod
    def forward(ctx, called, *tensors):
        ctx.called = called
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx, *gradients):
        ctx.called()
        return None, *gradients
