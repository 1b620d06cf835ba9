"""Work on all parameters or gradients in parts that fit the memory budget; without a budget, in one part."""
import contextlib
from ctypes import c_uint32, c_uint64

from .. import core

PARAMETERS, SUMS, STATES = 1, 2, 4


def divide(group, items, bytes_of, divisible=True, most=0):
    """`items` in their order, as a list of parts, which are lists: at least one, perhaps empty. `most`: the most bytes of a part;
    0: as many as the budget allows."""
    if not divisible:
        return [items]
    sizes, ends = (c_uint64 * len(items))(*map(bytes_of, items)), (c_uint32 * max(len(items), 1))()
    count = core.part_divide(group.handle, sizes, len(items), most, ends)
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
