"""Memory of homes: PyTorch's allocator takes it from the library while a pool is open."""
import atexit
import contextlib
import gc
import os
import threading
from ctypes import byref, c_int8, c_uint64

import torch

from .. import core
from . import addresses, pools

PARAMETER, GRADIENT, STATE = range(3)  # as in castor_homes
_ALLOCATES = ("castor_home_of_parameter", "castor_home_of_gradient", "castor_home_of_state")

_pools = {}  # (kind, device): its MemPools that are not open
_refused = set()  # devices without homes
_preparing = threading.Lock()
_captured = False  # a graph was captured


def available(device):
    """Whether tensors of the device, a number, can have homes. The first call for a device prepares it."""
    with _preparing:
        return (STATE, device) in _pools or device not in _refused and not torch.cuda.is_current_stream_capturing() and _prepare(device)


def _prepare(device):
    try:
        core.device_start(device)
        if not _allocator_takes_pools(device):
            raise core.Error("PyTorch allocates by cudaMallocAsync, without its cache, or by an allocator of the script's; homes need "
                             "its own caching allocator (PYTORCH_CUDA_ALLOC_CONF=backend:native)")
    except core.Error as error:
        _refused.add(device)
        core.passthrough(f"model data stays where the script has it: {str(error).removeprefix('castor: ')}".encode())
        return False
    if not _pools:
        atexit.register(core.event_devices_end)
        # A forked child, as a DataLoader's worker, cannot use CUDA. What is garbage by then stays: the end of an event would end the child.
        os.register_at_fork(after_in_child=gc.freeze)
    for kind in (PARAMETER, GRADIENT, STATE):
        _pools[kind, device] = [_new_pool(kind, device)]
    return True


def _allocator_takes_pools(device):
    """Tried with a tensor, since allocators differ in what they do with a pool: some raise, some allocate past it."""
    closed = []
    try:
        closed.append(_new_pool(STATE, device))
        with pools.opened(closed[0], device):
            tried = torch.empty(1, device=torch.device("cuda", device))
        return tiers([tried])[0] != core.HOME_NONE
    except torch.OutOfMemoryError:  # the pool was asked
        return True
    except RuntimeError:
        return False
    finally:
        pools.end(closed)


def _new_pool(kind, device):
    allocator = torch.cuda.memory.CUDAPluggableAllocator(None, _ALLOCATES[kind], "castor_home_free")
    with torch.cuda.device(device):  # a pool is of the device that is current when it is made
        return torch.cuda.MemPool(allocator.allocator())


def devices():
    """The devices that have homes."""
    return sorted({device for _, device in list(_pools)})


def apart(kind, device):
    """Pools for born(): what is born there shares homes with nothing else."""
    return [_new_pool(kind, device)]


@contextlib.contextmanager
def born(kind, device, closed=None):
    """What this thread allocates on the device gets homes of the kind. Never left open: PyTorch does not free its cached memory and
    try again while it is. closed: other pools than those of all."""
    if not available(device) or torch.cuda.is_current_stream_capturing():
        yield
        return
    closed = _pools[kind, device] if closed is None else closed
    try:
        pool = closed.pop()
    except IndexError:  # it is open in another thread, or further out in this one; PyTorch opens a pool once at a time
        pool = _new_pool(kind, device)
    try:
        with pools.opened(pool, device):
            yield
    finally:
        closed.append(pool)


def release(kind, device):
    """Gives back what the pools of the kind keep and no tensor has, which PyTorch does only when a pool ends."""
    closed = _pools[kind, device]
    pools.end(closed)
    closed.append(_new_pool(kind, device))


def give_back():
    """All that the pools keep and no tensor has."""
    for kind, device in list(_pools):
        release(kind, device)


def tiers(some):
    """For each tensor: HOME_DEVICE, HOME_HOST, or HOME_NONE if it has no home."""
    found = (c_int8 * len(some))()
    core.home_tiers((c_uint64 * len(some))(*(t.data_ptr() for t in some)), len(some), found)
    return list(found)


def can_have(t):
    return t.device.type == "cuda" and t.layout is torch.strided and type(t) in (torch.Tensor, torch.nn.Parameter) and t.numel() > 0


def keep_addresses():
    """From now on a graph may hold the address of any tensor."""
    global _captured
    _captured = True


def move(t, kind, drain=False, pools_=None):
    """Gives the tensor's whole storage a home: every tensor over it, and what autograd has saved of it, follows. False: the storage
    belongs to somebody else, other code has its address, a graph may replay with it, or it has no memory. drain: another stream than this
    one may still write there; its writes would be lost. pools_: as in born()."""
    storage = t.untyped_storage()
    if _captured or not storage.resizable() or not storage.nbytes() or addresses.was_given(storage) or torch.cuda.is_current_stream_capturing():
        return False
    if drain:
        torch.cuda.synchronize(t.device)
    # The old memory is read there, whatever stream it comes from. Where the allocator will forget that, the host waits until it was read:
    # memory that other streams use is not given away while a pool is open, and ours is open as long.
    stream = torch.cuda.current_stream(t.device)
    told = pools.record(t, stream)
    with torch.cuda.device(t.device), born(kind, t.device.index, pools_):
        storage.resize_(storage.nbytes())
        if not told:
            stream.synchronize()
    return _count(t) != core.HOME_NONE


def _count(t):
    """The tier of a home that gets what was in the device's memory: on the host this passes the link."""
    (tier,) = tiers([t])
    if tier == core.HOME_HOST:
        core.event_device_copied(t.device.index, core.HOME_HOST, t.untyped_storage().nbytes(), None)
    return tier


def unused(device):
    """Bytes of homes that no tensor has. Asks PyTorch's allocator for every segment: not often."""
    some = [pool for kind in (PARAMETER, GRADIENT, STATE) for pool in list(_pools.get((kind, device), ()))]
    return sum(segment["total_size"] - segment["allocated_size"] for pool in some for segment in pool.snapshot())


def statistics(device):
    found = core.Homes()
    core.homes_get(device, byref(found))
    return found
