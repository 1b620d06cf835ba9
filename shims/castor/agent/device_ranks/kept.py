"""What a rank keeps for others on its device, and how they read it (interpose/nodes/kept.h)."""
import atexit
import ctypes
import sys
import zlib

import torch
import torch.distributed as dist

from .. import core
from ..common import store
from ..nodes import peers

_peers = {}  # a group: the Peer of each of its ranks


def peers_of(group, device=None):
    """Where each rank can be read. The first call is a collective of the ranks; `device`: of this one."""
    if group not in _peers:
        port, token = ctypes.c_int(), core.options.job.encode()
        address = peers.own_address().encode()
        core.kept_serve(token, address, ctypes.byref(port))
        every = [None] * group.world
        with torch.cuda.device(device):
            dist.all_gather_object(every, peers.Peer(address, port.value, token), group=group.process_group)
        _peers[group] = every
        atexit.register(_leave, group)
    return _peers[group]


def _leave(group):
    """The script has ended: other ranks may still read what this one keeps, unless the job has failed."""
    if not store.active() or hasattr(sys, "last_value"):
        return
    try:
        group.control.barrier("the end of the script")
    except core.GroupError:  # said already
        pass


def name_of(group, number):
    """The same on all ranks. `number`: of what the group keeps."""
    return zlib.crc32(repr(tuple(group.ranks)).encode()) << 32 | number


def show(name, version, device, ranges, directory=b"", lasts=False):
    """`ranges`: (address, bytes) each, of which all that the current stream has enqueued so far is to be seen. `lasts`: the version before stays
    what it is."""
    core.kept_show(name, version, lasts, device.index, torch.cuda.current_stream(device).cuda_stream, directory, len(directory),
                   (ctypes.c_uint64 * len(ranges))(*[address for address, _ in ranges]), (ctypes.c_uint64 * len(ranges))(*[size for _, size in ranges]),
                   len(ranges))


def hide(name):
    core.kept_hide(name)


def directory(peer, name, version):
    data, size = ctypes.c_void_p(), ctypes.c_uint64()
    core.kept_directory(*peer, name, version, ctypes.byref(data), ctypes.byref(size))
    return ctypes.string_at(data.value, size.value)


def read(peer, name, version, wanted):
    """`wanted`: (number of the range, a tensor of the host that takes it) each."""
    sizes = [value.numel() * value.element_size() for _, value in wanted]
    core.kept_read(*peer, name, version, (ctypes.c_uint32 * len(wanted))(*[number for number, _ in wanted]), (ctypes.c_uint64 * len(wanted))(*sizes),
                   core.pointers([value.data_ptr() for _, value in wanted]), len(wanted))
