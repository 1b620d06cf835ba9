"""When DistributedDataParallel communicates, for loops that accumulate gradients.

DDP decides in its forward whether the following backward communicates (require_backward_grad_sync). A hook before each
forward asks the module's accumulating optimizers. If the next backward is the boundary of none of them, the hook switches
synchronization off. It never switches it on, so a script's own no_sync() holds.

A forward may belong to another micro-step than the next backward (two forwards, then two backwards). Before the backward of
a boundary, at_boundary() therefore prepares the reducer if the forward did not."""
import weakref

import torch
from torch.nn.parallel import DistributedDataParallel

_watches = weakref.WeakKeyDictionary()  # DDP module: _Watch


class _Watch:
    """The state of one DDP module."""

    def __init__(self):
        self.accumulating = weakref.WeakSet()  # optimizers
        self.silenced = False  # synchronization was off in the last forward with gradients
        self.wanted = []  # the script's setting, for each running forward


# The hooks are functions of this file, so that a DDP module with them can be pickled and copied; a copy has no watch. They are
# not compiled.


@torch._disable_dynamo
def _before(module, args):
    state = _watches.get(module)
    if state is None:
        return
    wanted = module.require_backward_grad_sync
    state.wanted.append(wanted)
    if torch.is_grad_enabled() and state.accumulating:
        state.silenced = wanted and not any(optimizer.next_at_boundary() for optimizer in state.accumulating)
        if state.silenced:
            module.require_backward_grad_sync = False


@torch._disable_dynamo
def _after(module, args, output):
    state = _watches.get(module)
    if state is not None and state.wanted:
        module.require_backward_grad_sync = state.wanted.pop()


def watch(model, optimizer):
    """From here on the DDP modules in `model`, or `model` itself, communicate only if `optimizer.next_at_boundary()` was true in
    their forward. Returns these modules."""
    modules = [m for m in model.modules() if isinstance(m, DistributedDataParallel)] if isinstance(model, torch.nn.Module) else []
    for module in modules:
        if module not in _watches:
            _watches[module] = _Watch()
            module.register_forward_pre_hook(_before)
            module.register_forward_hook(_after, always_call=True)
        _watches[module].accumulating.add(optimizer)
    return modules


def at_boundary(modules, tensor):
    """Before the backward of `tensor` at a boundary: makes sure that its gradients are communicated."""
    for module in modules:
        state = _watches.get(module)
        if state is not None and state.silenced:
            state.silenced = False
            module.reducer.prepare_for_backward([tensor])
