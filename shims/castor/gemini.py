"""Gemini's memory management, as far as scripts call it (Colossal-AI: colossalai.zero.gemini)."""
from ctypes import byref, c_uint64

import torch.distributed as dist

from .agent import core

core.require()

__all__ = ["search_chunk_configuration"]

_UNIT = 1 << 20  # elements
_LARGEST = (1 << 63) - 1


def search_chunk_configuration(model, search_range_m, search_interval, min_chunk_size_m=32, filter_exlarge_params=True):
    """The size of chunks that wastes least memory for the parameters of `model`.

    Args:
        model: a torch.nn.Module; its parameters count in the order of `model.parameters()`, tied ones once, those that
            DistributedDataParallel is told to ignore (`_ddp_to_ignore`) not at all.
        search_range_m: how far beyond the smallest size to search, in units of 2**20 elements.
        search_interval: the step between sizes, in elements.
        min_chunk_size_m: the smallest chunk, in units of 2**20 elements.
        filter_exlarge_params: parameters of more elements than the mean + 3 population standard deviations do not decide; each
            gets a chunk of its own.

    Returns ({data-parallel degree: {"chunk_size": elements, "keep_gathered": bool}}, elements of all parameters, wasted
    elements). Fewer elements than the smallest chunk are one chunk of all of them, kept gathered, and waste nothing. Else sizes
    from the largest parameter or the smallest chunk on, rounded up to the interval, are tried over the range, its end
    included; the first with the least waste is taken, and rounded up to the data-parallel degree. ValueError for a range
    or a size below 0 and an interval below 1."""
    span, smallest = round(search_range_m * _UNIT), round(min_chunk_size_m * _UNIT)
    for name, value, least in (("search_range_m", span, 0), ("search_interval", search_interval, 1), ("min_chunk_size_m", smallest, 0)):
        if not least <= value <= _LARGEST:
            raise ValueError(f"{name} must be {least} or more, and name a size below 2**63 elements")
    degree = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    sizes = [p.numel() for p in model.parameters() if not getattr(p, "_ddp_to_ignore", False)]
    group = core.ChunkGroup((c_uint64 * len(sizes))(*sizes), len(sizes), degree)
    total, wasted = c_uint64(), c_uint64()
    core.chunk_search(
        byref(group), 1, byref(core.ChunkRange(span, search_interval, smallest, int(filter_exlarge_params))), byref(total), byref(wasted)
    )
    return {degree: {"chunk_size": group.chunk_numel, "keep_gathered": bool(group.keep_gathered)}}, total.value, wasted.value
