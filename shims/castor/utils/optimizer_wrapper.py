"""A wrapper around an optimizer, on which the explicit API builds."""
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


def _clip(model, max_norm):
    """torch.nn.utils.clip_grad_norm_; where the model is a pipeline's stage, by the norm of all stages, of which each rank's optimizer
    clips its own gradients. A parameter that stages share counts once."""
    from ..engine import _groups, gradient_handler

    groups = _groups.groups()
    if groups is None or groups.stages == 1:
        return torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    elsewhere = {id(p) for parts, p in gradient_handler.TiedGradientHandler.of(model) if min(part % groups.stages for part in parts) != groups.stage}
    parameters = [p for p in model.parameters() if p.grad is not None]
    first = next(model.parameters())
    square = torch.nn.utils.get_total_norm([p.grad for p in parameters if id(p) not in elsewhere]).to(first.device, torch.float64).square()
    torch.distributed.all_reduce(square, group=groups.stage_group)
    norm = square.sqrt().to(first.dtype)
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm
