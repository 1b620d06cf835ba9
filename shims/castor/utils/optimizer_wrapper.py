"""A wrapper around an optimizer, on which the explicit API builds."""
import sys

import torch


class WrappedOptimizer(torch.optim.Optimizer):
    """Wraps `optim` (a torch.optim.Optimizer, or another wrapper) and shows its attributes: parameter groups, state, hooks, state
    dict. It is a subclass of Optimizer, since schedulers check that. It does not call Optimizer's constructor, so that nothing
    is registered twice."""

    def __init__(self, optim):
        self.optim = optim

    def __getattr__(self, name):
        if name == "optim":  # before __init__: while it is copied or unpickled
            raise AttributeError(name)
        return getattr(self.optim, name)

    def __getstate__(self):
        return self.__dict__.copy()

    def __setstate__(self, state):
        self.__dict__.update(state)

    def __repr__(self):
        return f"{type(self).__name__}({self.optim!r})"

    @property
    def param_groups(self):
        return self.optim.param_groups

    @property
    def state(self):
        return self.optim.state

    @property
    def defaults(self):
        return self.optim.defaults

    def add_param_group(self, param_group):
        return self.optim.add_param_group(param_group)

    def state_dict(self, *args, **kwargs):
        return self.optim.state_dict(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        return self.optim.load_state_dict(*args, **kwargs)

    def zero_grad(self, *args, **kwargs):
        return self.optim.zero_grad(*args, **kwargs)

    def step(self, *args, **kwargs):
        return self.optim.step(*args, **kwargs)

    def backward(self, loss, *args, **kwargs):
        """Adds the gradients of `loss`, a scalar tensor, to the leaves'."""
        inner = getattr(self.optim, "backward", None)
        return loss.backward(*args, **kwargs) if inner is None else inner(loss, *args, **kwargs)

    def backward_by_grad(self, tensor, grad):
        """Adds to the leaves' gradients, given `grad`, the gradient of `tensor` (the same shape); or lists of both."""
        inner = getattr(self.optim, "backward_by_grad", None)
        return torch.autograd.backward(tensor, grad) if inner is None else inner(tensor, grad)

    def clip_grad_norm(self, model, max_norm):
        """Clips the gradients of the model's parameters to a total norm of `max_norm`. Returns the norm before clipping, a scalar
        tensor. A `max_norm` of 0 or less clips nothing and returns None."""
        inner = getattr(self.optim, "clip_grad_norm", None)
        if inner is not None:
            return inner(model, max_norm)
        if max_norm <= 0:
            return None
        return _clip(model, max_norm)


def _groups():
    """The job's ParallelGroups; None: castor.launch has made none. (castor.engine needs the library, and this file does not.)"""
    module = sys.modules.get(__package__.removesuffix("utils") + "engine._parallel_groups")
    return None if module is None else module.groups()


def _clip(model, max_norm):
    """As clip_by_norm(), of a model's parameters; those that `model` shares with other stages need no handler that knows them."""
    groups, elsewhere = _groups(), []
    if groups is not None:
        from ..engine.gradient_handler import TiedGradientHandler

        tied = TiedGradientHandler.of(model)
        elsewhere = [p for parts, p in tied if p is not None and min(part % groups.stages for part in parts) != groups.stage]
    return clip_by_norm(model.parameters(), max_norm, elsewhere=elsewhere)


def clip_by_norm(parameters, max_norm, norm_type=2.0, elsewhere=None):
    """torch.nn.utils.clip_grad_norm_. In a pipeline by the norm of all stages, of which each rank clips its own gradients; with parameters in
    blocks by the norm of the whole ones. `elsewhere`: the parameters that another stage counts; None: those that a TiedGradientHandler knows."""
    groups, parameters, order = _groups(), list(parameters), float(norm_type)
    staged = groups is not None and groups.stages > 1
    made = [p for p in parameters if p.grad is not None]
    if not staged and not any(map(_divided_over, made)):
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, order)
    if not order > 0:
        raise ValueError(f"castor: a norm of type {norm_type} over several ranks: expected a number above 0")
    if elsewhere is None and staged:
        from ..engine.gradient_handler import counted_elsewhere

        elsewhere = counted_elsewhere(made)
    left_out = set(map(id, elsewhere or ()))
    by_group, device = {}, next((p.device for p in parameters), torch.device("cpu"))
    for p in made:
        if id(p) not in left_out:
            by_group.setdefault(_divided_over(p), []).append(p.grad)
    total = _Powers(order, device)
    for over, gradients in by_group.items():
        total.add(gradients, over)
    norm = total.norm(groups.stage_group if staged else None).to(made[0].grad.dtype if made else torch.float32)
    if made:
        scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for device in {p.grad.device for p in made}:  # parts may be in host memory
            torch._foreach_mul_([_block(p.grad) for p in made if p.grad.device == device], scale.to(device))
    return norm


class _Powers:
    """The sum of the elements' powers, in double; for the order inf the largest element."""

    def __init__(self, order, device):
        self.order, self.reduction = order, torch.distributed.ReduceOp.MAX if order == float("inf") else torch.distributed.ReduceOp.SUM
        self.total = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, gradients, over):
        """`over`: the mesh or group over which they are divided; None: each rank has whole ones."""
        blocks = gradients if over is None or hasattr(gradients[0], "full_tensor") else [_block(grad) for grad in gradients]
        norm = torch.nn.utils.get_total_norm(blocks, self.order)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        power = self._power(norm)
        if over is not None and blocks is not gradients:
            torch.distributed.all_reduce(power, self.reduction, group=over.tp_process_group())
        self.total = torch.maximum(self.total, power) if self.order == float("inf") else self.total + power

    def _power(self, norm):
        norm = norm.to(self.total.device, torch.float64)
        return norm if self.order == float("inf") else norm**self.order

    def norm(self, group):
        """Over the ranks of a group, too."""
        if group is not None:
            torch.distributed.all_reduce(self.total, self.reduction, group=group)
        return self.total if self.order == float("inf") else self.total ** (1 / self.order)


def _divided_over(p):
    """The DeviceMesh of a DTensor, the ProcessGroup of a ColoTensor that has a block of its whole; None of other tensors."""
    if hasattr(p, "device_mesh"):
        return p.device_mesh
    return p.process_group if hasattr(p, "dist_spec") and not p.is_replicate() else None


def _block(grad):
    """This rank's part of a gradient, a plain tensor with the same memory."""
    return grad.to_local() if hasattr(grad, "to_local") else grad.as_subclass(torch.Tensor)
