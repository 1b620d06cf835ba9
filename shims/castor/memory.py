"""Where a rank's data is (Colossal-AI: the chunk manager's and the memory tracers' figures)."""
from ctypes import byref

from .agent import core

core.require("castor.memory_stats")

__all__ = ["memory_stats"]

KINDS, TIERS = ("parameters", "gradients", "optimizer_states"), ("device", "host", "disk")
MOMENTS = ("forward", "backward", "gradient", "optimizer")


def memory_stats():
    """Where this rank's data is, now.

    Returns a dict, in bytes unless said otherwise:
        budget: the node's CASTOR_MEMORY_BUDGET; 0: none.
        chunk_size: of one chunk; 0: there are none.
        parameters, gradients, optimizer_states: {"device", "host", "disk"}: the chunks that this rank owns, by tier: in memory
            (host), or on disk only. Data in no chunk counts as host, or as device if it is in device memory; homes of devices
            count where they lie.
        other: this rank's other CPU tensors.
        moments: {"forward", "backward", "gradient", "optimizer"}: {"model", "other"}: under a budget, the peak in memory during
            such moments, of this rank's chunks and of its share of the node's other data.
        moves, moved: the number of moves of chunks between tiers, and their bytes.
        prefetch: {"hits", "late", "misses", "hit_rate"}: accesses to evicted chunks: prefetched in time, prefetched too late,
            not prefetched. hit_rate: 0 to 1; 1 if there was no such access.
        stall_seconds: how long accesses waited for chunks."""
    found = core.Memory()
    core.memory_get(byref(found))
    needed = found.hits + found.late + found.misses
    return {
        "budget": found.budget_bytes,
        "chunk_size": found.chunk_bytes,
        **{kind: dict(zip(TIERS, of_kind)) for kind, of_kind in zip(KINDS, found.bytes)},
        "other": found.other_bytes,
        "moments": {
            moment: {"model": model, "other": other}
            for moment, model, other in zip(MOMENTS, found.moment_bytes, found.moment_other_bytes)
        },
        "moves": found.moves,
        "moved": found.moved_bytes,
        "prefetch": {
            "hits": found.hits, "late": found.late, "misses": found.misses,
            "hit_rate": found.hits / needed if needed else 1.0,
        },
        "stall_seconds": found.stall_ns * 1e-9,
    }
