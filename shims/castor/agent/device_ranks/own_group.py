"""A process group of Castor's own, for ranks whose script has none (`--nproc`): NCCL over the ranks' devices, gloo where ranks share one.
`torch.distributed` does not know it, so a script that asks whether it is distributed is told what it is in plain PyTorch."""
import atexit
import datetime
import struct

import torch
import torch.distributed as dist

from .. import core
from ..common import store
from ..device import choice
from . import entries

_LOOPBACK = "127.0.0.1"
_PORT = struct.Struct("<i")
_groups = {}  # the store's group of the ranks: their entries.Group


def group_of(control):
    """Of the ranks of `control`, a group of the store on this node. The first call is made by all ranks together."""
    if control not in _groups:
        _groups[control] = entries.Group(_make(control), list(range(control.world)), control)
    return _groups[control]


def _make(control):
    timeout = datetime.timedelta(seconds=core.options.timeout)
    met = _meeting_place(control, timeout)
    there = dist.PrefixStore("castor", met)
    core.process_group_announce(b"castor", None, 0)  # for the trace
    devices = choice.share(control, torch.cuda.current_device(), [0] * control.world)
    if devices == control.world:
        options, kind = dist.ProcessGroupNCCL.Options(), dist.ProcessGroup.BackendType.NCCL
        options._timeout = timeout
        options.global_ranks_in_group, options.group_name = list(range(control.world)), "castor"
        backend = dist.ProcessGroupNCCL(there, control.rank, control.world, options)
    else:
        if control.rank == 0:
            core.log(2, f"{control.world} ranks share {devices} device{'s' if devices > 1 else ''}: what they exchange goes through the host (gloo), since NCCL "
                        "takes one rank for each device".encode())
        kind = dist.ProcessGroup.BackendType.GLOO
        backend = dist.ProcessGroupGloo(there, control.rank, control.world, timeout=timeout)
    core.process_group_announce(None, None, 0)
    backend._set_sequence_number_for_group()
    group = dist.ProcessGroup(met, control.rank, control.world)
    group._set_default_backend(kind)
    group._register_backend(torch.device("cuda"), kind, backend)
    atexit.register(_end, group)
    return group


def _meeting_place(control, timeout):
    """A store of PyTorch's, kept by rank 0, in which NCCL's ranks meet."""
    served = dist.TCPStore(_LOOPBACK, 0, control.world, True, timeout, wait_for_workers=False) if control.rank == 0 else None
    port, = _PORT.unpack(control.broadcast(_PORT.pack(0 if served is None else served.port), "where NCCL's ranks meet"))
    return dist.TCPStore(_LOOPBACK, port, control.world, False, timeout) if served is None else served


def _end(group):
    if store.active():
        group.shutdown()
