"""Sums of gradients by the processors (CASTOR_DEVICE_STEP).

A later micro-step adds to gradients. Where these are on the host, a kernel would read and write them over the link. So the new gradient goes to
the host, and the processors add it there, with the same bits, behind the script's back (interpose/device/updates.h).

While PyTorch accumulates, the parameter has no gradient: the new one becomes it. Then the old one takes its place again, before anybody sees that: a
parameter on whose gradient the script has a hook is left to PyTorch."""
import threading
import weakref

import torch

from .. import core
from ..common import tensors
from ..process import events
from . import homes, pools, step_common

_TYPES = torch.float32, torch.float16, torch.bfloat16
_STAGED = 16 << 20  # bytes of gradients that may be on their way, of one device and thread; twice the largest one where that is more

_aside = {}  # id of a parameter: (the parameter, its gradient), while PyTorch accumulates the next
# By thread and device. Not local to threads: a forked child, as a DataLoader's worker, frees what is local to threads that it does not have, and pinned memory needs CUDA.
_staging = {}


class _Staging:
    """Memory of the host, where gradients come to be added. It is used from its begin to its end, over and over."""

    def __init__(self):
        self.memory, self.at, self.before = torch.empty(0, dtype=torch.uint8), 0, []

    def take(self, size, device):
        """As many bytes, which nobody reads when what is enqueued next in device.goes comes to them."""
        if 2 * size > len(self.memory):
            self.before.append(self.memory)  # sums that are not over read there
            self.memory, self.at = torch.empty(max(2 * size, _STAGED), dtype=torch.uint8, pin_memory=True), 0
        if self.at + size > len(self.memory):
            core.device_updates_wait(device.index, device.goes.cuda_stream)
            self.at = 0
        taken = self.memory[self.at:self.at + size]
        self.at += -(-size // 64) * 64
        return taken


def watch(p, accumulated):
    """From here on later gradients of the parameter may be added so. accumulated(p): called after each one that is not."""
    this = weakref.ref(p)

    def comes(new):
        parameter = this()
        if parameter is not None and _can_add(parameter, new) and _sees_first(parameter, has_come) and _is_accumulated(parameter):
            _aside[id(parameter)] = parameter, parameter.grad
            parameter.grad = None

    def has_come(parameter):
        if not _added(parameter):
            accumulated(parameter)

    if core.options.device_step != "parts":
        p.register_hook(comes)
    p.register_post_accumulate_grad_hook(has_come)


def _can_add(p, new):
    held = p.grad
    return (held is not None and not torch.is_grad_enabled() and not held.requires_grad and type(new) is torch.Tensor and new.layout is torch.strided
            and new.dtype is held.dtype and held.dtype in _TYPES and homes.can_have(held) and tensors.is_dense(held)
            and not torch.cuda.is_current_stream_capturing() and _is_on_host(held)
            and not step_common.why_not_reached(held.device.index))


def _is_accumulated(p):
    """Whether the pass that has made a gradient adds it to the parameter's. torch.autograd.grad gives it to who asked, though hooks see it, too."""
    try:
        return torch._C._will_engine_execute_node(torch.autograd.graph.get_gradient_edge(p).node)
    except RuntimeError:  # of a leaf that torch.autograd.grad was asked for
        return False


def _is_on_host(t):
    return homes.tiers([t])[0] == core.HOME_HOST


def _sees_first(p, hook):
    """Whether no hook of the script's comes between, and `hook` is the first one that sees what was accumulated."""
    return (next(iter((p._post_accumulate_grad_hooks or {}).values()), None) is hook
            and all(map(tensors.is_castors, p._backward_hooks.values())))


def _added(p):
    """PyTorch has accumulated a gradient. Returns whether it was to be added to one on the host, and has been."""
    _, held = _aside.pop(id(p), (None, None))
    if held is None:
        return False
    new, p.grad = p.grad, held
    if new.layout is not torch.strided or new.stride() != held.stride() or not _is_on_host(held):
        held.add_(new)
        return True
    device, size = step_common.device(held.device.index), held.numel() * held.element_size()
    staging = _staging.setdefault((threading.get_ident(), device.index), _Staging())
    device.goes.wait_stream(torch.cuda.current_stream(device.index))
    try:
        memory = staging.take(size, device)
    except RuntimeError:  # there is no pinned memory
        held.add_(new)
        return True
    with torch.cuda.stream(device.goes):
        copy = memory.view(held.dtype).as_strided(held.size(), held.stride()).copy_(new, non_blocking=True)
        device.count(core.HOME_HOST, size, device.goes)
    if not pools.record(new, device.goes):
        device.goes.synchronize()
    one = core.StepRange(param=held.data_ptr(), grad=copy.data_ptr(), count=held.numel(), numel=held.numel())
    core.device_sum(device.index, device.goes.cuda_stream, tensors.DTYPES[held.dtype], one, 1, torch.get_num_threads())
    torch.autograd.graph.increment_version([held])
    return True


class _Observer(events.Observer):
    def backward_raised(self, error):
        """To what is aside, and has no other yet, no gradient comes."""
        for key, (p, held) in list(_aside.items()):
            if p.grad is None:
                p.grad = held
                _aside.pop(key, None)


def install():
    events.observe(_Observer())
