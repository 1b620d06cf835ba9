"""Records optimizer steps, and the sizes of models' data, in the trace."""
import itertools
import weakref
from ctypes import c_uint8, c_uint64

import torch

from .. import core
from ..common import store
from ..device_ranks import sums
from ..nodes import remote
from ..process import launchers

_numbers = weakref.WeakKeyDictionary()  # optimizer: its number
_steps = weakref.WeakKeyDictionary()  # optimizer: its steps
_count = itertools.count()


def is_first_step():
    """No optimizer has stepped yet."""
    return not _numbers


def stepped(optimizer, begin_ns, mode):
    """Records an outermost step that began at `begin_ns` and has ended."""
    if optimizer not in _numbers:
        if not _numbers:
            _tell_rank()
        _numbers[optimizer] = next(_count)
        _steps[optimizer] = 0
    _steps[optimizer] += 1
    fuller = core.event_device_peak()
    if fuller or _steps[optimizer] & (_steps[optimizer] - 1) == 0:  # now and then: the 1st, 2nd, 4th, 8th step
        tell_model_data(list(_numbers))
    core.event_step(begin_ns, core.now_ns(), _numbers[optimizer], mode)


def _tell_rank():
    """This process trains, so it is a rank: of its process group, or of the launcher whose script makes none."""
    place = launchers.place()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        core.rank_set(torch.distributed.get_rank())
    elif place is not None:
        core.rank_set(place[0])


def tell_model_data(optimizers, parameters=()):
    """Records the bytes of parameters, of optimizers' and others, their gradients and states that are not in the store; homes count their own."""
    seen, on_cpu, on_devices = set(), [0, 0, 0], []

    def add(kind, tensor):
        tensor = getattr(tensor, "_local_tensor", tensor)  # a DTensor has no memory of its own
        if tensor.is_cuda:
            plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)  # others may have no address
            on_devices.append((tensor.data_ptr() if plain else 0, tensor.nbytes, kind))
        else:
            on_cpu[kind] += tensor.nbytes

    for state, ps in [*((optimizer.state, store.parameters_of(optimizer)) for optimizer in optimizers), ({}, parameters)]:
        for p in ps:
            entry = store.entry_of(p)
            if id(p) in seen or entry is not None and entry.shared:
                continue
            seen.add(id(p))
            add(0, p)
            grad = sums.grad_of(p)
            if grad is not None and grad.layout is torch.strided:
                add(1, grad)
            for value in remote.values_here(state.get(p, {})):
                if isinstance(value, torch.Tensor):
                    add(2, value)
    count = len(on_devices)
    addresses, sizes, kinds = zip(*on_devices) if count else ((), (), ())
    core.event_device_data((c_uint64 * count)(*addresses), (c_uint64 * count)(*sizes), (c_uint8 * count)(*kinds), count)
    core.event_model_data(*on_cpu)
