"""Process groups of Castor's own, for ranks whose script has none (`--nproc`), or that have a model together (`--plugin hybrid`): NCCL over the ranks'
devices, gloo where ranks share one, and for tensors of the host.
`torch.distributed` does not know them, so a script that asks whether it is distributed is told what it is in plain PyTorch."""
import ctypes
import datetime
import struct

import torch
import torch.distributed as dist

from .. import core
from ..device import choice
from ..nodes import own_groups
from ..nodes.control import Control
from . import entries

_LOOPBACK = "127.0.0.1"
_PORT = struct.Struct("<i")
_groups = {}  # what the ranks compare over (entries.Group.control): their entries.Group
_meetings = {}  # of ranks on one node, the same: where they meet


def group_of(control):
    """Of the ranks of `control`. The first call is made by all of them together."""
    if control not in _groups:
        ranks = list(range(control.world))
        group = _groups[control] = entries.Group(made(control, "castor", ranks, "cuda"), ranks, control, getattr(control, "secret", None))
        if not group.one_node:
            group.lane = made(control, f"castor-lane-{group.in_lane[0]}", group.in_lane, "cuda")
    return _groups[control]


def made(control, name, ranks, device):
    """A process group of these ranks, this one among them, for tensors of a type of devices. All ranks of `control` call this together, each for a
    group of its own, whose name no other ranks use."""
    timeout = datetime.timedelta(seconds=core.options.timeout)
    meeting = control.meeting if isinstance(control, Control) else _meeting_place(control, timeout)
    devices = control.world if device == "cpu" else choice.share(control, torch.cuda.current_device())
    if devices != control.world and control.rank == 0:
        core.log(2, f"{control.world} ranks share {devices} device{'s' if devices > 1 else ''}: what they exchange goes through the host (gloo), since NCCL "
                    "takes one rank for each device".encode())
    if device == "cpu" or devices != control.world:
        return own_groups.gloo(meeting, name, control.rank, ranks, device)
    core.process_group_announce(name.encode(), (ctypes.c_int32 * len(ranks))(*ranks), len(ranks))  # for the trace
    options, place = dist.ProcessGroupNCCL.Options(), ranks.index(control.rank)
    options._timeout = timeout
    options.global_ranks_in_group, options.group_name = ranks, name
    backend = dist.ProcessGroupNCCL(dist.PrefixStore(name, meeting), place, len(ranks), options)
    backend.eager_connect_single_device(torch.device("cuda", torch.cuda.current_device()))  # later some ranks may wait for what others do before
    core.process_group_announce(None, None, 0)
    return own_groups.over(backend, dist.ProcessGroup.BackendType.NCCL, device, meeting, place, len(ranks))


def _meeting_place(control, timeout):
    """A store of PyTorch's, kept by rank 0, in which the ranks of groups on one node meet."""
    if control in _meetings:
        return _meetings[control]
    served = dist.TCPStore(_LOOPBACK, 0, control.world, True, timeout, wait_for_workers=False) if control.rank == 0 else None
    port, = _PORT.unpack(control.broadcast(_PORT.pack(0 if served is None else served.port), "where the ranks of process groups meet"))
    _meetings[control] = dist.TCPStore(_LOOPBACK, port, control.world, False, timeout) if served is None else served
    return _meetings[control]
