"""Records optimizer steps, and the sizes of models' data, in the trace."""
import itertools
import weakref

import torch

from .. import core
from ..common import store

_numbers = weakref.WeakKeyDictionary()  # optimizer: its number
_steps = weakref.WeakKeyDictionary()  # optimizer: its steps
_count = itertools.count()


def is_first_step():
    """No optimizer has stepped yet."""
    return not _numbers


def stepped(optimizer, begin_ns, mode):
    """Records an outermost step that began at `begin_ns` and has ended."""
    if optimizer not in _numbers:
        if not _numbers and torch.distributed.is_available() and torch.distributed.is_initialized():
            core.rank_set(torch.distributed.get_rank())
        _numbers[optimizer] = next(_count)
        _steps[optimizer] = 0
    _steps[optimizer] += 1
    if _steps[optimizer] & (_steps[optimizer] - 1) == 0:  # now and then: the 1st, 2nd, 4th, 8th step
        _tell_model_data()
    core.event_step(begin_ns, core.now_ns(), _numbers[optimizer], mode)


def _tell_model_data():
    """Records the bytes of the optimizers' parameters, gradients and states that are not in the store, and those on devices."""
    seen, whole, device = set(), [0, 0, 0], [0, 0, 0]

    def add(kind, tensor):
        whole[kind] += tensor.nbytes
        device[kind] += 0 if tensor.device.type == "cpu" else tensor.nbytes

    for optimizer in list(_numbers):
        for p in store.parameters_of(optimizer):
            entry = store.entry_of(p)
            if id(p) in seen or entry is not None and entry.shared:
                continue
            seen.add(id(p))
            add(0, p)
            if p.grad is not None and p.grad.layout is torch.strided:
                add(1, p.grad)
            for value in optimizer.state.get(p, {}).values():
                if isinstance(value, torch.Tensor):
                    add(2, value)
    core.event_model_data(*whole)
    if torch.cuda.is_initialized():
        allocated = sum(torch.cuda.memory_allocated(index) for index in range(torch.cuda.device_count()))
        core.event_device_data(*device, max(allocated - sum(device), 0))
