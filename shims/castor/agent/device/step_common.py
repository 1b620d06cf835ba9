"""What steps of an optimizer on a device share, be they done in parts or on the host: the tensors of a parameter's step, streams beside the
script's, and which parameters the optimizer sees."""
import contextlib
import functools
import threading

import torch

from .. import core
from ..common import separable, tensors
from ..precision import masters

# Classes whose step writes gradients only where writes_gradients says so.
KNOWN = tuple(getattr(torch.optim, name) for name in ("Adam", "AdamW", "SGD"))


class Device:
    """A device's streams: what comes and goes beside the steps."""

    def __init__(self, index):
        self.index = index
        self.comes, self.goes = torch.cuda.Stream(index), torch.cuda.Stream(index)

    def begin(self):
        """What the script has enqueued so far is done before anything comes."""
        self.steps = torch.cuda.current_stream(self.index)
        self.comes.wait_stream(self.steps)

    def end(self):
        """What the script enqueues next finds everything at home. `comes` reuses the memory of copies only after
        the steps that used them and after they were written back."""
        self.steps.wait_stream(self.comes)
        self.steps.wait_stream(self.goes)
        self.comes.wait_stream(self.steps)

    def count(self, to, size, stream):
        """Of a copy that was enqueued there, for the trace."""
        if size:
            core.event_device_copied(self.index, to, size, stream.cuda_stream)


thread = threading.local()  # .devices: by number; threads step at once, each in the order of its streams


def device(index):
    found = thread.__dict__.setdefault("devices", {})
    if index not in found:
        found[index] = Device(index)
    return found[index]


@functools.cache
def why_not_reached(index):
    """Why the processors cannot work on what is on the host of this device, behind its streams; empty: they can."""
    try:
        core.device_updates(index)
    except core.Error as error:
        return str(error)
    return ""


def tensors_of(optimizer, p, grad):
    """A parameter, its gradient, its master and its states on the same device; numbers stay where they are."""
    states = optimizer.state[p].values() if p in optimizer.state else ()
    wide = masters.of(p)
    some = p, grad, *(() if wide is None else (wide.tensor,)), *states
    return [t for t in some if isinstance(t, torch.Tensor) and t.device == p.device and t.layout is torch.strided and t.dim()]


def share_memory(optimizer, pairs):
    """Whether two of the tensors, of which one may be written, have addresses in common."""
    writes = writes_gradients(optimizer)
    ranges = [(t.data_ptr(), tensors.extent(t), t is not grad or writes) for p, grad in pairs for t in tensors_of(optimizer, p, grad)]
    end = written_end = 0
    for first, size, written in sorted(ranges):
        if first < (end if written else written_end):
            return True
        end = max(end, first + size)
        written_end = max(written_end, first + size) if written else written_end
    return False


def writes_gradients(optimizer):
    """Whether its steps may write gradients."""
    known = type(optimizer) in KNOWN or separable.has_declared(type(optimizer))
    return (not known or getattr(optimizer, "grad_scale", None) is not None
            or any(group.get("nesterov") for group in optimizer.param_groups))


def hidden(pairs):
    """An optimizer does not see parameters that have no gradient."""
    return _exchanged([(p, None, grad) for p, grad in pairs])


def shown(pairs):
    return _exchanged([(p, grad, None) for p, grad in pairs])


@contextlib.contextmanager
def _exchanged(gradients):
    """(parameter, its gradient inside, and outside), unless it was given another one meanwhile."""
    for p, inside, _ in gradients:
        p.grad = inside
    try:
        yield
    finally:
        for p, inside, outside in gradients:
            if p.grad is inside:
                p.grad = outside
