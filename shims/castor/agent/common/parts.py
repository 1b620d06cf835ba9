"""Work on all parameters or gradients in parts that fit the memory budget; without a budget, in one part."""
import contextlib
from ctypes import c_int32, c_uint32, c_uint64

from .. import core

PARAMETERS, SUMS, STATES = 1, 2, 4


def divide(group, items, bytes_of, divisible=True, own_memory=False):
    """`items` in their order, as a list of parts, which are lists: at least one, perhaps empty. `own_memory`: the work on a part needs
    memory of its own."""
    if not divisible:
        return [items]
    return _divided(items, bytes_of, lambda sizes, count, ends: core.part_divide(group.handle, sizes, count, own_memory, ends))


def divide_by_device(pairs, bytes_of):
    """The same for (parameter, gradient) pairs on devices, whose copies have `bytes_of` bytes: a part is on one device. None without pairs."""
    devices = (c_int32 * len(pairs))(*[p.device.index for p, _ in pairs])
    return _divided(pairs, bytes_of, lambda *arguments: core.device_parts_divide(devices, *arguments))


def _divided(items, bytes_of, divide):
    sizes, ends = (c_uint64 * len(items))(*map(bytes_of, items)), (c_uint32 * max(len(items), 1))()
    count = divide(sizes, len(items), ends)
    return [items[begin:end] for begin, end in zip([0, *ends], ends[:count])]


@contextlib.contextmanager
def in_memory(group, kinds, number, entries):
    """Loads what this rank owns of `entries`, and keeps it in memory. `number`: of the part."""
    handles = core.pointers([e.handle for e in entries])
    core.part_begin(group.handle, kinds, number, handles, len(handles))
    try:
        yield
    finally:
        core.part_end(group.handle)
