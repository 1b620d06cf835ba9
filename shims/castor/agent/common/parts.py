"""Work on all parameters or gradients in parts, for which a memory budget has room; without one, in one."""
import contextlib

from .. import core

PARAMETERS, SUMS, STATES = 1, 2, 4


def divide(group, items, bytes_of, divisible=True, most=0):
    """`items` in their order, as a list of lists; one, perhaps empty, at least. `most`: bytes of a part, 0: as many as there
    is room for."""
    room = core.part_bytes(group.handle) if divisible else 0
    if divisible and most:
        room = min(room, most) if room else most
    parts, used = [[]], 0
    for item in items:
        size = bytes_of(item)
        if room and parts[-1] and used + size > room:
            parts.append([])
            used = 0
        parts[-1].append(item)
        used += size
    return parts


@contextlib.contextmanager
def in_memory(group, kinds, number, entries):
    """What this rank owns of `entries` is in memory, and stays there; `number`: of the part."""
    handles = core.pointers([e.handle for e in entries])
    core.part_begin(group.handle, kinds, number, handles, len(handles))
    try:
        yield
    finally:
        core.part_end(group.handle)
