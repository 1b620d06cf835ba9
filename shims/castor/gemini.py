"""Gemini's memory management, as far as scripts call it (Colossal-AI: colossalai.zero.gemini)."""
from ctypes import byref, c_uint64

import torch.distributed as dist

from .agent import core

core.require()

__all__ = ["search_chunk_configuration", "use_chunk_configuration"]

_UNIT = 1 << 20  # elements
_LARGEST = (1 << 63) - 1
_SMALLEST = 64 << 10  # bytes of a chunk


def search_chunk_configuration(model, search_range_m, search_interval, min_chunk_size_m=32, filter_exlarge_params=True):
    """Finds the chunk size that wastes the least memory for the parameters of `model`.

    Args:
        model: a torch.nn.Module; its parameters are taken in the order of `model.parameters()`. Tied ones count once; those
            that DistributedDataParallel ignores (`_ddp_to_ignore`) do not count.
        search_range_m: how far beyond the smallest size to search, in units of 2**20 elements.
        search_interval: the step between sizes, in elements.
        min_chunk_size_m: the smallest chunk, in units of 2**20 elements.
        filter_exlarge_params: leave parameters with more elements than the mean + 3 population standard deviations out of the
            search; each of them gets a chunk of its own.

    Returns ({data-parallel degree: {"chunk_size": elements, "keep_gathered": bool}}, elements of all parameters, wasted
    elements). If all parameters have fewer elements than the smallest chunk, one chunk holds them all, is kept gathered and
    wastes nothing. Otherwise the search starts at the largest parameter or the smallest chunk, whichever is larger, rounded up
    to the interval. It tries the sizes of the range, its end included, takes the first one with the least waste and rounds it
    up to the data-parallel degree. ValueError for a range or a size below 0, and for an interval below 1."""
    span, smallest = round(search_range_m * _UNIT), round(min_chunk_size_m * _UNIT)
    for name, value, least in (("search_range_m", span, 0), ("search_interval", search_interval, 1), ("min_chunk_size_m", smallest, 0)):
        if not least <= value <= _LARGEST:
            raise ValueError(f"{name} must be {least} or more, and name a size below 2**63 elements")
    degree = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    sizes = [p.numel() for p in model.parameters() if not getattr(p, "_ddp_to_ignore", False)]
    tensors = core.ChunkList((c_uint64 * len(sizes))(*sizes), len(sizes), degree)
    total, wasted = c_uint64(), c_uint64()
    core.chunk_search(
        byref(tensors), 1, byref(core.ChunkRange(span, search_interval, smallest, int(filter_exlarge_params))), byref(total), byref(wasted)
    )
    return {degree: {"chunk_size": tensors.chunk_numel, "keep_gathered": bool(tensors.keep_gathered)}}, total.value, wasted.value


def use_chunk_configuration(configuration, element_size):
    """Sets the size of chunks (CASTOR_CHUNK_SIZE), before the first model is shared.

    Args:
        configuration: the first thing that search_chunk_configuration() returns.
        element_size: of a parameter, in bytes.

    ValueError: it has no chunk size, or one that is out of bounds. ImportError: the process was not started by `castor run`."""
    core.require("castor.gemini.use_chunk_configuration")
    degree = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    chosen = configuration.get(degree) or next(iter(configuration.values()), None) if isinstance(configuration, dict) else None
    if not isinstance(chosen, dict) or not isinstance(chosen.get("chunk_size"), int):
        raise ValueError(f"castor: {configuration!r} is no configuration of chunks: expected {{data-parallel degree: {{'chunk_size': elements, "
                         "'keep_gathered': bool}}, as search_chunk_configuration() returns it")
    try:
        core.option_set(b"CASTOR_CHUNK_SIZE", str(max(chosen["chunk_size"] * element_size, _SMALLEST)).encode())
    except core.Error as error:
        raise ValueError(str(error)) from None
    core.read_options()
