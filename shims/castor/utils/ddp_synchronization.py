"""When DistributedDataParallel communicates, for loops that accumulate gradients.

DDP decides in its forward whether the backward that follows communicates (require_backward_grad_sync). Here each forward
asks the accumulating optimizers of the module: it is told not to where none of them is before its boundary. A script's
own no_sync() holds in any case: synchronization is taken away, never added.

A forward may belong to another micro-step than the next backward (two forwards, then two backwards). A boundary's
backward therefore checks that its gradients will be communicated, and tells the reducer if its forward did not."""
import weakref

import torch
from torch.nn.parallel import DistributedDataParallel

_watches = weakref.WeakKeyDictionary()  # DDP module: _Watch


class _Watch:
    """Of one DDP module."""

    def __init__(self):
        self.accumulating = weakref.WeakSet()  # optimizers
        self.silenced = False  # the last forward with gradients was told not to communicate
        self.wanted = []  # what the script had set, of the forwards that run


# The hooks are functions of this module, so that a module with them can be pickled and copied; a copy has no watch. A
# compiled module runs them as they are.


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
    """The DDP modules in `model` (itself, or within it) communicate only where `optimizer.next_at_boundary()` was true in
    their forward. Returns them."""
    modules = [m for m in model.modules() if isinstance(m, DistributedDataParallel)] if isinstance(model, torch.nn.Module) else []
    for module in modules:
        if module not in _watches:
            _watches[module] = _Watch()
            module.register_forward_pre_hook(_before)
            module.register_forward_hook(_after, always_call=True)
        _watches[module].accumulating.add(optimizer)
    return modules


def at_boundary(modules, tensor):
    """Before the backward of `tensor` at a boundary: its gradients will be communicated."""
    for module in modules:
        state = _watches.get(module)
        if state is not None and state.silenced:
            state.silenced = False
            module.reducer.prepare_for_backward([tensor])
