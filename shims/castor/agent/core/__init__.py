"""The functions of libcastor.so (castor.h), bound with ctypes. Nothing is decided here."""
import ctypes
import os
from ctypes import (
    POINTER, byref, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p,
)


PACKAGE_FOLDER = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")) + os.sep  # the frames of its files are not the script's


class Error(RuntimeError):
    """What the core found wrong; its text says what to do."""


class GroupError(Error):
    """What ends the work of all ranks together: each of them gets it."""


class PartedError(GroupError):
    """The ranks have come to different meetings. The text names the line of the script on two of them."""


class Description(ctypes.Structure):
    _fields_ = [("address", c_void_p), ("numel", c_uint64), ("dtype", c_int32), ("flags", c_int32), ("layout", c_uint64)]


class Home(ctypes.Structure):
    """castor_home: where the script has a parameter now."""

    _fields_ = [("address", c_void_p), ("layout", c_uint64), ("bytes", c_uint64), ("states", c_uint64), ("flags", c_int32),
                ("unused", c_int32)]


class TensorInfo(ctypes.Structure):
    _fields_ = [
        ("id", c_uint32), ("owner", c_int32), ("shared", c_int32), ("dtype", c_int32), ("node", c_int32),
        ("single_sum", c_int32), ("single_parameter", c_int32),
        ("bytes", c_uint64), ("home", c_void_p), ("param_alias", c_void_p), ("sum", c_void_p),
    ]


class Nodes(ctypes.Structure):
    """castor_nodes: where a rank stands among nodes."""

    _fields_ = [(name, c_int32) for name in ("node", "node_count", "local_rank", "local_world", "lanes")]


class Range(ctypes.Structure):
    _fields_ = [("address", c_void_p), ("numel", c_uint64), ("dtype", c_int32)]


class Accumulation(ctypes.Structure):
    """castor_accumulation: micro-steps of a step, and those made since the last one."""

    _fields_ = [("size", c_int64), ("count", c_int64)]


class LossScale(ctypes.Structure):
    """castor_loss_scale: what losses are multiplied by, and the steps since it changed."""

    _fields_ = [("scale", c_double), ("good", c_int64)]


class ChunkGroup(ctypes.Structure):
    """castor_chunk_group: the tensors of one data-parallel degree, and what the search finds for them."""

    _fields_ = [
        ("numel", POINTER(c_uint64)), ("count", c_uint64), ("degree", c_uint64), ("chunk_numel", c_uint64),
        ("keep_gathered", c_int32),
    ]


class ChunkRange(ctypes.Structure):
    """castor_chunk_range: which sizes are tried."""

    _fields_ = [("numel", c_uint64), ("interval", c_uint64), ("minimum", c_uint64), ("filter", c_int32)]


class StepRange(ctypes.Structure):
    """castor_step_range: elements of one tensor, with what an optimizer keeps for them."""

    _fields_ = [
        ("param", c_void_p), ("grad", c_void_p), ("master", c_void_p), ("states", c_void_p * 3),
        ("offset", c_size_t), ("count", c_size_t), ("numel", c_size_t),
    ]


class Step(ctypes.Structure):
    """castor_step: what all optimizers' steps have."""

    _fields_ = [(name, c_int32) for name in (
        "param_dtype", "grad_dtype", "decay_kind", "fused", "separate", "maximize", "variation", "unused")] + [
        (name, c_double) for name in ("inv_scale", "clip", "decay")]


class AdamStep(ctypes.Structure):
    """castor_adam."""

    _fields_ = [("step", Step)] + [(name, c_double) for name in (
        "mean_weight", "square_keep", "square_weight", "root_divisor", "epsilon", "negative_step")]


class SgdStep(ctypes.Structure):
    """castor_sgd."""

    _fields_ = [("step", Step)] + [(name, c_double) for name in ("momentum", "grad_weight", "negative_lr")] + [
        (name, c_int32) for name in ("first", "unused")]


class Audit(ctypes.Structure):
    """castor_audit: one backward of the whole batch beside that of its parts."""

    _fields_ = [("whole_loss", c_double), ("parts_loss", c_double), ("rounding", c_int32), ("verdict", c_int32)] + [
        (name, c_double) for name in ("whole_norm", "parts_norm", "difference")] + [("worst", c_uint32), ("ranks", c_uint32)]


LOSS_TERMS = 8  # whose counts the ranks compare
TERM_MEAN_OF_TARGETS, TERM_SUM_DIVIDED, TERM_MEAN_OF_ELEMENTS, TERM_SUM, TERM_OTHER = range(1, 6)
AUDIT_EQUAL, AUDIT_DIFFERENT, AUDIT_UNKNOWN, AUDIT_SUM = range(4)
AUDIT_SINGLE, AUDIT_HALF, AUDIT_LOOSE = range(3)
SKETCH_BUCKETS = 32


class Memory(ctypes.Structure):
    """castor_memory: what of this rank's data is where."""

    _fields_ = [
        ("budget_bytes", c_uint64), ("chunk_bytes", c_uint64), ("bytes", c_uint64 * 3 * 3), ("other_bytes", c_uint64),
        ("moment_bytes", c_uint64 * 4), ("moment_other_bytes", c_uint64 * 4),
    ] + [(name, c_uint64) for name in ("moves", "moved_bytes", "hits", "late", "misses", "stall_ns")]


class ArenaInfo(ctypes.Structure):
    _fields_ = [(name, c_uint64) for name in ("live_bytes", "live_peak_bytes", "dirty_bytes", "adopted_bytes")]


# Places of a rank (store_place in interpose/store/store.h).
PLACE_SCRIPT, PLACE_ADOPT, PLACE_BACKWARD, PLACE_STEP, PLACE_TOGETHER, PLACE_COLLECTIVE, PLACE_SAVE, PLACE_DATA = range(8)
GRADIENT_USED, GRADIENT_CARRY, GRADIENT_KEEP = 1, 2, 4
DESCRIPTION_WHOLE, DESCRIPTION_FLOAT_SUM = 1, 2
HOME_WHOLE, HOME_STATES_AWAY, HOME_STATES_REACHED = 1, 2, 4
HOME_STAYS, HOME_COMES, HOME_LEAVES = range(3)
MODE_PLAIN, MODE_OWNER, MODE_REPLICATED, MODE_LOCAL = range(4)

# name: (result, arguments). "status" results become exceptions.
StackTeller = ctypes.CFUNCTYPE(None, c_char_p)
PlaceTeller = ctypes.CFUNCTYPE(None, c_void_p, c_size_t)

_SIGNATURES = {
    "attach": ("status", []),
    "error": (c_char_p, []),
    "option": (c_char_p, [c_char_p]),
    "plugin_engine": (c_int, []),
    "plugin_shards": (c_int, []),
    "torch_check": ("status", [c_char_p]),
    "log": (None, [c_int, c_char_p]),
    "rank_set": (None, [c_int]),
    "passthrough": (None, [c_char_p]),
    "refuse": (None, [c_char_p]),
    "group_announce": (None, [c_char_p, c_void_p, c_size_t]),
    "said": (c_int, [c_char_p]),
    "say": (None, [c_char_p]),
    "files_divert": ("status", [c_char_p]),
    "files_adopt": ("status", [c_char_p, c_char_p]),
    "stack_teller_set": (None, [StackTeller]),
    "contexts_watch": (None, []),
    "contexts_count": (c_uint32, []),
    "contexts_unwatch": (None, []),
    "node_open": ("status", [c_char_p, c_int, c_int, c_double, POINTER(c_void_p)]),
    "node_bind": ("status", [c_void_p]),
    "node_bind_across": ("status", [c_void_p, c_int, c_void_p, c_int, c_void_p]),
    "across_bound": (c_int, [c_void_p]),
    "leaders_watch": (None, []),
    "leaders_unwatch": (None, []),
    "node_leave": (None, [c_void_p]),
    "node_calls": (c_uint64, []),
    "layout_begin": (None, []),
    "layout_expect": (None, [c_int, c_void_p, c_void_p, c_size_t, c_int64, c_int, c_int]),
    "layout_throw": (None, [c_char_p]),
    "layout_end": (c_int, []),
    "layout_leads": (c_int, []),
    "arena_block": (c_uint64, [c_void_p]),
    "arena_get": (None, [POINTER(ArenaInfo)]),
    "memory_available": (c_uint64, []),
    "memory_get": (None, [POINTER(Memory)]),
    "now_ns": (c_uint64, []),
    "event_step": (None, [c_uint64, c_uint64, c_uint32, c_uint32]),
    "event_backward": (None, [c_uint64, c_uint64, c_int]),
    "event_model_data": (None, [c_uint64, c_uint64, c_uint64]),
    "event_device_data": (None, [c_uint64, c_uint64, c_uint64, c_uint64]),
    "optimizer_adam": ("status", [c_void_p, c_void_p, c_uint32, c_int]),
    "optimizer_sgd": ("status", [c_void_p, c_void_p, c_uint32, c_int]),
    "part_divide": (c_uint32, [c_void_p, c_void_p, c_uint32, c_uint64, c_void_p]),
    "part_begin": ("status", [c_void_p, c_int, c_uint32, c_void_p, c_uint32]),
    "part_end": ("status", [c_void_p]),
    "places": (c_int, [c_uint64]),
    "store_open": ("status", [c_char_p, c_int, c_int, POINTER(c_void_p)]),
    "store_open_node": ("status", [c_char_p, c_char_p, c_int, c_int, c_int, POINTER(c_void_p)]),
    "store_leave": (None, [c_void_p]),
    "barrier": ("status", [c_void_p, c_char_p]),
    "broadcast": ("status", [c_void_p, c_void_p, c_size_t, c_char_p]),
    "gather": ("status", [c_void_p, c_void_p, c_size_t, c_void_p, c_char_p]),
    "agree": ("status", [c_void_p, c_char_p, c_void_p, c_void_p, c_uint32]),
    "place_set": (None, [c_void_p, c_int]),
    "fail": (None, [c_void_p, c_char_p, c_uint64]),
    "failure_cause": (c_uint64, [c_void_p, c_int]),
    "place_teller_set": (None, [PlaceTeller]),
    "failure_get": (c_int, [c_void_p, c_char_p, c_size_t]),
    "blamed_wait": (None, [c_void_p, c_double]),
    "signals_set": (None, [c_void_p] * 4),
    "raised_take": (None, [c_void_p]),
    "store_check": ("status", [c_void_p]),
    "pool_start": ("status", [c_void_p, c_void_p]),
    "pool_stop": (None, []),
    "pool_is_safe": (c_int, []),
    "pool_sweep": (c_uint64, [c_void_p, c_uint32]),
    "pool_get": (None, [POINTER(c_uint64)] * 3),
    "register": ("status", [c_void_p, c_void_p, c_uint32, c_void_p]),
    "tensor_get": (None, [c_void_p, POINTER(TensorInfo)]),
    "tensor_forget": (None, [c_void_p]),
    "tensor_release": ("status", [c_void_p]),
    "tensor_keep_home": ("status", [c_void_p]),
    "homes_look": (c_uint32, [c_void_p, c_void_p, c_void_p, c_uint32, c_void_p]),
    "homes_settle": ("status", [c_void_p, c_void_p, c_void_p, c_uint32, c_void_p, POINTER(c_uint64)]),
    "digest": (c_uint64, [c_void_p, c_uint64]),
    "gradient_add": ("status", [c_void_p, c_void_p, c_double, c_int, POINTER(c_uint64)]),
    "gradients_done": (c_uint64, [c_void_p]),
    "gradients_finish": ("status", [c_void_p, c_void_p, c_uint32, c_void_p]),
    "window_take": ("status", [c_void_p, POINTER(c_void_p), POINTER(c_void_p)]),
    "window_return": (None, [c_void_p]),
    "window_refresh": ("status", [c_void_p]),
    "window_zero": ("status", [c_void_p]),
    "window_edited": (c_uint64, [c_void_p]),
    "windows_detach": ("status", [c_void_p]),
    "window_carry": ("status", [c_void_p, c_void_p]),
    "sum_release": (None, [c_void_p]),
    "node_identity": (c_uint64, []),
    "nodes_find": ("status", [c_void_p, c_int, c_int, POINTER(Nodes), c_void_p, c_void_p]),
    "node_ranges": ("status", [c_int, c_void_p, c_uint32, c_void_p, c_int, c_void_p, POINTER(c_uint32)]),
    "sums_settle": ("status", [c_void_p, c_void_p, c_uint32, c_void_p]),
    "store_ranks_set": ("status", [c_void_p, c_void_p]),
    "store_shard": ("status", [c_void_p, c_int, c_int]),
    "serve": ("status", [c_void_p, c_char_p, c_char_p, POINTER(c_int)]),
    "node_read": ("status", [c_char_p, c_int, c_char_p, c_void_p, c_void_p, c_void_p, c_uint32]),
    "sums_complete": (c_uint32, [c_void_p, c_uint32]),
    "demand_probe": ("status", []),
    "demand": ("status", [c_void_p, c_int, c_void_p, c_void_p, c_void_p]),
    "demand_drop": ("status", [c_int, c_void_p, c_uint32]),
    "demand_forgotten": (c_uint32, [c_void_p, c_void_p, c_uint32]),
    "demand_sweep": (None, [c_void_p, c_void_p, c_uint32]),
    "demand_leave": (None, [c_void_p]),
    "serve_wait": ("status", [c_void_p, c_int]),
    "node_bytes_add": (None, [c_uint64]),
    "together": ("status", [c_void_p, c_uint64, c_int, POINTER(c_int)]),
    "step_begin": ("status", [c_void_p, c_void_p, c_void_p, c_uint32]),
    "publish_push": (None, [c_void_p, c_uint32]),
    "publish_mark": (None, [c_void_p]),
    "publish_end": ("status", [c_void_p, c_void_p, c_uint32, c_void_p]),
    "publish_deduplicate": ("status", [c_void_p, c_void_p, c_uint32, c_char_p]),
    "state_place": ("status", [c_void_p, c_uint64, POINTER(c_uint64), POINTER(c_void_p)]),
    "state_view": ("status", [c_void_p, c_uint64, c_uint64, POINTER(c_void_p)]),
    "state_unview": (None, [c_void_p, c_void_p, c_uint64]),
    "views_push": ("status", [c_void_p, c_void_p, c_void_p, c_uint32]),
    "view_keep": ("status", [c_void_p, c_uint64]),
    "views_drop": ("status", [c_void_p, c_void_p, c_uint32]),
    "copy_many": (None, [c_void_p, c_void_p, c_void_p, c_uint32]),
    "directory_put": ("status", [c_void_p, c_char_p, c_size_t]),
    "directory_get": (c_void_p, [c_void_p, c_int, POINTER(c_size_t)]),
    "chunk_search": ("status", [POINTER(ChunkGroup), c_uint32, POINTER(ChunkRange), POINTER(c_uint64), POINTER(c_uint64)]),
    "annealing": (c_double, [c_double, c_double, c_double, c_double, c_double]),
    "settle": (None, [c_int, c_void_p, c_void_p, c_void_p, c_uint32, c_void_p]),
    "batch_part": (c_double, [c_uint64, c_int, c_int, POINTER(c_uint64), POINTER(c_uint64)]),
    "loss_scale_begin": (None, [POINTER(LossScale)]),
    "loss_scale_overflowed": (None, [POINTER(LossScale), c_int]),
    "loss_scale_stepped": (None, [POINTER(LossScale), c_int]),
    "loss_shares": ("status", [c_void_p, c_void_p, c_uint32, c_void_p]),
    "sketch_add": (None, [c_int, c_void_p, c_uint64, c_double, c_void_p]),
    "audit_compare": (None, [c_void_p, c_void_p, c_uint32, POINTER(Audit)]),
    "event_audit": (None, [c_double]),
    "accumulation_begin": ("status", [POINTER(Accumulation), c_int64]),
    "accumulation_count": (c_int, [POINTER(Accumulation)]),
    "accumulation_at_boundary": (c_int, [POINTER(Accumulation)]),
    "accumulation_next_at_boundary": (c_int, [POINTER(Accumulation)]),
    "accumulation_is_empty": (c_int, [POINTER(Accumulation)]),
    "accumulation_take_step": (c_int, [POINTER(Accumulation)]),
    "accumulation_every": (c_int, [POINTER(Accumulation)]),
    "accumulation_length": ("status", [c_int64, c_int64, POINTER(c_int64), POINTER(c_int64)]),
}


# castor_status (interpose/core/status.h): a signal's handler raised; a peer is gone, CASTOR_TIMEOUT, ranks that differ or parted.
_INTERRUPTED = 8
_OF_ALL_RANKS = {4: GroupError, 5: GroupError, 6: GroupError, 9: PartedError}


def _raise_on_error(status, function, arguments):
    if status == _INTERRUPTED:
        _raise_again()
    if status:
        raise _OF_ALL_RANKS.get(status, Error)("castor: " + error().decode(errors="replace"))
    return status


def _raise_again():
    """The exception with which a signal's handler (Ctrl-C) ended a wait."""
    raised = (c_void_p * 3)()
    raised_take(raised)
    restore = ctypes.pythonapi.PyErr_Restore
    restore.argtypes, restore.restype = [c_void_p] * 3, None
    restore(*raised)


def _let_signals_in():
    """Gives the core what it needs to run the handlers of signals while this thread waits in it."""
    names = ("PyGILState_Ensure", "PyGILState_Release", "PyErr_CheckSignals", "PyErr_Fetch")
    signals_set(*(ctypes.cast(getattr(ctypes.pythonapi, name), c_void_p) for name in names))


def bind():
    """Binds the functions into this module. False: libcastor.so is not in this process."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "castor_attach"):
        return False
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, "castor_" + name)
        function.argtypes = arguments
        function.restype = c_int if result == "status" else result
        if result == "status":
            function.errcheck = _raise_on_error
        globals()[name] = function
    _let_signals_in()
    return True


def require():
    """Binds the functions for the explicit API. ImportError: the process was not started by `castor run`."""
    if not bind():
        raise ImportError("castor: libcastor.so is not in this process: start the script with `castor run -- python ...`", name="castor")


def option_text(name):
    value = option(name.encode())
    if value is None:
        raise KeyError(name)
    return value.decode()


def pointers(values):
    return (c_void_p * len(values))(*values)
