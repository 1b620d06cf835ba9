"""Tells the core the names and ranks of process groups, so that `castor top` and the stall watch can say which ranks a collective
lacks. PyTorch's behaviour is unchanged, but for the functions that collectives.py may replace, and for where ranks meet that torchrun may start again (restarts.py)."""
import ctypes
import functools
import inspect
import sys

from .. import core, patching
from . import collectives, restarts


def install():
    if "torch.distributed.distributed_c10d" in sys.modules:
        patching.replace("torch.distributed.distributed_c10d._new_process_group_helper", _wrap)


def _wrap(make):
    parameters = inspect.signature(make)
    if not {"global_ranks_in_group", "group_name"} <= set(parameters.parameters):
        return make

    @functools.wraps(make)
    def new_process_group_helper(*args, **kwargs):
        making = None
        try:
            bound = parameters.bind(*args, **kwargs)
            given = bound.arguments
            if core.plugin_engine() and not given["global_ranks_in_group"] and int(given["group_size"]) > 1 and restarts.possible():  # of all ranks
                timeout = given.get("timeout")
                patience = max(core.options.timeout, timeout.total_seconds() if timeout else 0)
                given["store"] = restarts.meeting(given["store"], int(given["group_rank"]), int(given["group_size"]), patience)
                args, kwargs = bound.args, bound.kwargs
            making = collectives.making(given)
            ranks = [int(rank) for rank in given["global_ranks_in_group"]]
            core.process_group_announce(str(given["group_name"]).encode(), (ctypes.c_int32 * len(ranks))(*ranks), len(ranks))
        except (KeyError, TypeError, ValueError):  # the real function raises its own error
            core.process_group_announce(None, None, 0)
        try:
            made = make(*args, **kwargs)
        except BaseException:
            if making:
                making.failed()
            raise
        finally:
            core.process_group_announce(None, None, 0)
        if making:
            making.made()
        return made

    return new_process_group_helper
