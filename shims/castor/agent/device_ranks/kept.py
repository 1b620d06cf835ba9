"""What a rank keeps for others on its device, and how they read it (interpose/nodes/kept.h)."""
import atexit
import contextlib
import ctypes
import sys
import weakref
import zlib

import torch
import torch.distributed as dist

from .. import core
from ..common import store
from ..nodes import grouping, peers

_ADDRESS_BYTES, _TOKEN_BYTES = 64, 64
_peers = {}  # a group: the Peer of each of its ranks


def peers_of(group):
    """Where each rank can be read. The first call is made by all ranks together."""
    if group not in _peers:
        port, token = ctypes.c_int(), core.options.job.encode()[:_TOKEN_BYTES]
        one_node = group.one_node if not dist.is_initialized() else grouping.on_one_node()  # of the whole job: this rank has one address
        address = b"127.0.0.1" if one_node else peers.own_address().encode()
        core.kept_serve(token, address, ctypes.byref(port))
        said = [port.value, *address.ljust(_ADDRESS_BYTES, b"\0"), *token.ljust(_TOKEN_BYTES, b"\0")]
        _peers[group] = [_peer(*map(int, each)) for each in group.control.gather(list(map(float, said)), "where each rank can be read")]
        atexit.register(_leave, group)
    return _peers[group]


def _peer(port, *text):
    return peers.Peer(bytes(text[:_ADDRESS_BYTES]).rstrip(b"\0"), port, bytes(text[_ADDRESS_BYTES:]).rstrip(b"\0"))


def _leave(group):
    """The script has ended: other ranks may still read what this one keeps, unless the job has failed."""
    if not store.active() or hasattr(sys, "last_value"):
        return
    try:
        group.control.barrier("the end of the script")
    except core.GroupError:  # said already
        pass


class Shown:
    """What each rank of a group keeps under one name. When a rank has no more use for it, it tells the others: the owner keeps the memory until
    all have.

    number   of what the group keeps, the same on all ranks
    version  of the last edition"""

    def __init__(self, group, number):
        self.group, self.version = group, 0
        self.name = zlib.crc32(repr(tuple(group.ranks)).encode()) << 32 | number
        weakref.finalize(self, _unused.append, (group, self.name)).atexit = False  # the others are told later, not within a collection of garbage


_unused = []  # (group, name): this rank has no more use for it
_memory = {}  # name: the tensors of this rank's last editions
_dropped = {}  # name: how many others may still read this rank's


def settle():
    """Tells the others what this rank uses no more, and frees what they use no more."""
    while _unused:
        group, name = _unused.pop()
        for rank, peer in enumerate(peers_of(group)):
            if rank != group.rank:
                with contextlib.suppress(core.Error):  # it has ended
                    core.kept_drop(*peer, name)
        _dropped[name] = group.world - 1
    for name in [name for name, readers in _dropped.items() if core.kept_drops(name) >= readers]:
        core.kept_end(name)
        del _dropped[name]
        _memory.pop(name, None)


def free(name):
    """No rank reads the last edition any more; the next one is still to come."""
    _memory.pop(name, None)


def show(name, version, device, tensors, directory=b"", lasts=False):
    """All that the current stream has enqueued so far in these tensors is to be seen. `lasts`: the version before stays what it is."""
    settle()
    ranges = [(t.data_ptr(), t.numel() * t.element_size()) for t in tensors]
    _memory[name] = tensors, _memory.get(name, ((),))[0] if lasts else ()
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
