"""An optimizer as the Booster returns it (Colossal-AI: colossalai.interface.optimizer)."""
import functools

import torch

from ..utils.optimizer_wrapper import WrappedOptimizer

__all__ = ["OptimizerWrapper"]


class OptimizerWrapper(WrappedOptimizer):
    """Wraps `optim`, and shows its attributes.

    Args:
        max_norm: step() clips to this norm; 0: it does not.
        norm_type: of that norm."""

    def __init__(self, optim, max_norm=0.0, norm_type=2.0):
        super().__init__(optim)
        self._max_norm, self._norm_type = max_norm, norm_type
        self._norm = None  # of the last clipping since the last backward
        self.frozen = ()  # parameters whose gradients are not averaged, since they were frozen when the model was boosted

    @property
    def parameters(self):
        """A list of the parameters of all groups, in their order."""
        return [p for group in self.param_groups for p in group["params"]]

    def backward(self, loss, inputs=None, retain_graph=False, **kwargs):
        """Adds the gradients of `loss`, a scalar tensor, to the leaves' (or to those of `inputs` alone)."""
        self._norm = None
        return super().backward(self.scale_loss(loss), inputs=inputs, retain_graph=retain_graph, **kwargs)

    def backward_by_grad(self, tensor, grad, inputs=None, retain_graph=False):
        """Adds to the leaves' gradients, given `grad`, the gradient of `tensor` (the same shape); or lists of both."""
        self._norm = None
        if inputs is None and not retain_graph:
            return super().backward_by_grad(tensor, grad)
        return torch.autograd.backward(tensor, grad, inputs=inputs, retain_graph=retain_graph)

    def step(self, closure=None, *args, **kwargs):
        """Clips, if the plugin has a `max_norm`, and steps. A closure's gradients are clipped each time that it is called."""
        self._check_frozen()
        if self._max_norm > 0 and closure is None:
            self.clip_grad_by_norm(self._max_norm, self._norm_type)
        elif self._max_norm > 0:
            return super().step(self._clipped(closure), *args, **kwargs)
        return super().step(*args, **kwargs) if closure is None else super().step(closure, *args, **kwargs)

    def _check_frozen(self):
        """RuntimeError: a step by gradients that each rank has of its own."""
        thawed = {id(p) for p in self.frozen if p.requires_grad}
        if thawed and any(id(p) in thawed and p.grad is not None for p in self.parameters):
            raise RuntimeError("castor: the optimizer steps parameters that were frozen when the model was boosted, and whose gradients are not averaged "
                               "over the ranks: boost the model with all that is trained at some time unfrozen, and freeze it afterwards")

    def _clipped(self, closure):
        @functools.wraps(closure)
        def run():
            loss = closure()
            self.clip_grad_by_norm(self._max_norm, self._norm_type)
            return loss

        return run

    def scale_loss(self, loss):
        """The loss as backward() takes it; where a loss scale is applied elsewhere, `loss` itself."""
        return loss

    def unscale_grad(self):
        """Takes the loss scale out of the gradients, where they have one."""

    def clip_grad_by_value(self, clip_value, *args, **kwargs):
        """Clips each gradient's elements to [-clip_value, clip_value]."""
        self.unscale_grad()
        torch.nn.utils.clip_grad_value_(self.parameters, clip_value, *args, **kwargs)

    def clip_grad_by_norm(self, max_norm, norm_type=2.0, error_if_nonfinite=False, *args, **kwargs):
        """Clips the gradients of all groups together to a norm of `max_norm`. Returns the norm before, a scalar tensor.
        RuntimeError: it is not finite, and `error_if_nonfinite`."""
        self.unscale_grad()
        self._norm = self._clip(max_norm, norm_type, error_if_nonfinite, *args, **kwargs)
        return self._norm

    def _clip(self, max_norm, norm_type, error_if_nonfinite, *args, **kwargs):
        return torch.nn.utils.clip_grad_norm_(self.parameters, max_norm, norm_type, error_if_nonfinite, *args, **kwargs)

    def get_grad_norm(self, norm_type=2.0, **kwargs):
        """The norm of all gradients together, before the last clipping, a float; None: there are no gradients."""
        if self._norm is not None:
            return float(self._norm)
        grads = [p.grad for p in self.parameters if p.grad is not None]
        return _norm(grads, norm_type) if grads else None

    def unwrap(self):
        """The script's own optimizer, from inside all wrappers."""
        optim = self.optim
        while isinstance(optim, WrappedOptimizer):
            optim = optim.optim
        return optim


def _norm(grads, norm_type):
    """A float, in float arithmetic also of gradients in 16 bits."""
    if any(g.dtype.itemsize < 4 for g in grads):
        norms = [torch.linalg.vector_norm(g, norm_type, dtype=torch.float32) for g in grads]
        norm = torch.linalg.vector_norm(torch.stack([each.to(norms[0].device) for each in norms]), norm_type)
    else:
        norm = torch.nn.utils.get_total_norm(grads, norm_type)
    return float(norm)
