"""Process groups of Castor's own, which `torch.distributed` does not know: a script that asks whether it is distributed is told what it is in plain PyTorch."""
import atexit
import ctypes
import datetime

import torch
import torch.distributed as dist

from .. import core
from ..common import store


def over(backend, kind, device, meeting, rank, world):
    """The process group over a backend, for tensors of a type of devices."""
    backend._set_sequence_number_for_group()
    group = dist.ProcessGroup(meeting, rank, world)
    group._set_default_backend(kind)
    group._register_backend(torch.device(device), kind, backend)
    atexit.register(_end, group)
    return group


def gloo(meeting, name, rank, ranks, device="cpu"):
    """Of these ranks of the job, `rank` among them, who meet in a store of PyTorch's, for tensors of a type of devices. No other ranks use the name."""
    core.process_group_announce(name.encode(), (ctypes.c_int32 * len(ranks))(*ranks), len(ranks))  # for the trace
    place, timeout = ranks.index(rank), datetime.timedelta(seconds=core.options.timeout)
    try:
        backend = dist.ProcessGroupGloo(dist.PrefixStore(name, meeting), place, len(ranks), timeout=timeout)
    finally:
        core.process_group_announce(None, None, 0)
    return over(backend, dist.ProcessGroup.BackendType.GLOO, device, meeting, place, len(ranks))


def _end(group):
    if store.active():
        group.shutdown()
