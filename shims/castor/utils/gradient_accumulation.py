"""Gradient accumulation: k micro-batches make the update of one batch (Colossal-AI: colossalai.utils.gradient_accumulation).

The core does the counting (castor_accumulation). With mean losses, k micro-batches of b samples give the update of one batch
of k * b."""
import ctypes
import operator
from ctypes import byref

from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from ..agent import core
from . import ddp_synchronization
from .optimizer_wrapper import WrappedOptimizer

core.require()

__all__ = [
    "GradAccumDataloader", "GradAccumGradientHandler", "GradAccumLrSchedulerByStep", "GradAccumOptimizer", "accumulate_gradient",
]


def accumulate_gradient(model, optimizer, dataloader, accumulate_size, gradient_handlers=None, lr_scheduler=None):
    """Wraps the parts of a training loop so that they accumulate over `accumulate_size` micro-batches.

    Returns (optimizer, dataloader, handlers, lr_scheduler); handlers (a list) and lr_scheduler are None if none is given.
    ValueError: accumulate_size is not a whole number of 1 or more."""
    optimizer = GradAccumOptimizer(optimizer, accumulate_size, model)
    dataloader = GradAccumDataloader(dataloader, accumulate_size)
    if gradient_handlers is not None:
        gradient_handlers = [GradAccumGradientHandler(handler, accumulate_size) for handler in gradient_handlers]
    if lr_scheduler is not None:
        lr_scheduler = GradAccumLrSchedulerByStep(lr_scheduler, accumulate_size)
    return optimizer, dataloader, gradient_handlers, lr_scheduler


def compute_effective_steps_per_epoch(dataloader, accumulate_size):
    """Optimizer steps of an epoch: len(dataloader) // accumulate_size."""
    return _whole_steps(len(dataloader), accumulate_size)[1]


class GradAccumOptimizer(WrappedOptimizer):
    """An optimizer that steps at each `accumulate_size`-th backward.

    Args:
        optim: the optimizer.
        accumulate_size: micro-batches per step, k.
        model: the model; the DistributedDataParallel modules in it communicate in the k-th backward only.

    backward() and backward_by_grad() count micro-steps. Other attributes are `optim`'s."""

    def __init__(self, optim, accumulate_size, model=None):
        super().__init__(optim)
        self.accumulate_size = accumulate_size
        self._accumulation = _begin(accumulate_size)
        self.model = model
        self._ddp = ddp_synchronization.watch(model, self)

    @property
    def accumulate_step(self):
        """Micro-steps since the last step."""
        return self._accumulation.count

    def next_at_boundary(self):
        """The next backward will be the k-th."""
        return bool(core.accumulation_next_at_boundary(byref(self._accumulation)))

    def _count(self, tensor):
        if core.accumulation_count(byref(self._accumulation)):
            ddp_synchronization.at_boundary(self._ddp, tensor)

    def backward(self, loss, *args, **kwargs):
        """A micro-step: the gradients of loss / k are added to the leaves'. `loss`: a scalar, the mean over its batch."""
        loss = loss / self.accumulate_size
        self._count(loss)
        return super().backward(loss, *args, **kwargs)

    def backward_by_grad(self, tensor, grad):
        """A micro-step from `grad`, the gradient of `tensor`, which is not divided by k."""
        self._count(tensor)
        return super().backward_by_grad(tensor, grad)

    def step(self, *args, **kwargs):
        """At the boundary: steps, counts anew and returns the result of the optimizer's step. Before it: returns None."""
        if core.accumulation_take_step(byref(self._accumulation)):
            return super().step(*args, **kwargs)
        return None

    def zero_grad(self, *args, **kwargs):
        """Acts only before the first micro-step."""
        if core.accumulation_is_empty(byref(self._accumulation)):
            super().zero_grad(*args, **kwargs)

    def clip_grad_norm(self, model, max_norm):
        """Acts only at the boundary, and returns the total norm there, else None."""
        if core.accumulation_at_boundary(byref(self._accumulation)):
            return super().clip_grad_norm(model, max_norm)
        return None


class GradAccumDataloader:
    """The batches of a loader that make whole steps: the first n - n mod k of its n.

    When the last of them is drawn, a loader that is not a PyTorch DataLoader is read to its end (some can be iterated again only
    then). If there is none, nothing is drawn. Other attributes are the loader's. TypeError: the loader has no length."""

    def __init__(self, dataloader, accumulate_size):
        self.dataloader = dataloader
        self.accumulate_size = accumulate_size
        self._current = None
        len(self)

    def __getattr__(self, name):
        if name == "dataloader":  # before __init__: while it is copied or unpickled
            raise AttributeError(name)
        return getattr(self.dataloader, name)

    def __len__(self):
        return _whole_steps(len(self.dataloader), self.accumulate_size)[0]

    def __iter__(self):
        self._current = _Truncated(self.dataloader, len(self))
        return self._current

    def __next__(self):
        """The next batch of the iteration begun last."""
        return next(iter(self) if self._current is None else self._current)


class _Truncated:
    """The first `length` batches of a loader."""

    def __init__(self, dataloader, length):
        self.left = length
        self.drains = not isinstance(dataloader, DataLoader)
        self.batches = iter(dataloader) if length else None

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            self.batches = None
            raise StopIteration
        batch = next(self.batches)
        self.left -= 1
        if not self.left and self.drains:
            while next(self.batches, self) is not self:
                pass
        return batch


class GradAccumLrSchedulerByStep(LRScheduler):
    """A scheduler (one that is stepped once a batch) that acts at each k-th step(). Other attributes are the scheduler's."""

    compute_effective_steps_per_epoch = staticmethod(compute_effective_steps_per_epoch)

    def __init__(self, lr_scheduler, accumulate_size):
        self.lr_scheduler = lr_scheduler
        self.accumulate_size = accumulate_size
        self._accumulation = _begin(accumulate_size)

    def __getattr__(self, name):
        if name == "lr_scheduler":  # before __init__: while it is copied or unpickled
            raise AttributeError(name)
        return getattr(self.lr_scheduler, name)

    @property
    def accumulate_step(self):
        """Calls since the last that acted."""
        return self._accumulation.count

    def step(self, *args, **kwargs):
        if core.accumulation_every(byref(self._accumulation)):
            self.lr_scheduler.step(*args, **kwargs)

    def get_lr(self):
        return self.lr_scheduler.get_lr()

    def get_last_lr(self):
        return self.lr_scheduler.get_last_lr()

    def state_dict(self):
        return self.lr_scheduler.state_dict()

    def load_state_dict(self, state_dict):
        self.lr_scheduler.load_state_dict(state_dict)


class GradAccumGradientHandler:
    """A gradient handler that fires at each k-th handle_gradient(). TypeError: `grad_handler` has no handle_gradient()."""

    def __init__(self, grad_handler, accumulate_size):
        if not callable(getattr(grad_handler, "handle_gradient", None)):
            raise TypeError(f"castor: {grad_handler!r} is no gradient handler: it has no method handle_gradient()")
        self.grad_handler = grad_handler
        self.accumulate_size = accumulate_size
        self._accumulation = _begin(accumulate_size)

    @property
    def accumulate_step(self):
        """Calls since the last that fired."""
        return self._accumulation.count

    def handle_gradient(self):
        if core.accumulation_every(byref(self._accumulation)):
            self.grad_handler.handle_gradient()


def _begin(accumulate_size):
    accumulation = core.Accumulation()
    _checked(core.accumulation_begin, byref(accumulation), _whole(accumulate_size))
    return accumulation


def _whole_steps(count, accumulate_size):
    """(batches, steps)"""
    length, steps = ctypes.c_int64(), ctypes.c_int64()
    _checked(core.accumulation_length, count, _whole(accumulate_size), byref(length), byref(steps))
    return length.value, steps.value


def _whole(accumulate_size):
    try:
        return operator.index(accumulate_size)
    except TypeError:
        raise ValueError(f"castor: accumulate_size is {accumulate_size!r}: expected a whole number, 1 or more") from None


def _checked(function, *arguments):
    try:
        function(*arguments)
    except core.Error as error:
        raise ValueError(str(error)) from None
