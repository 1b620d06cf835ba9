"""The ranks of `castor run --nproc N`, forked from one import of PyTorch. What is decided about it is in interpose/forking."""
import contextlib
import ctypes
import gc
import importlib
import os
import sys

from .. import core


def fork_ranks():
    """Returns in every rank, or in this process alone where castor starts the others."""
    count = core.fork_ready()
    if count:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        importlib.import_module("castor.agent.plugin").prepare()
        gc.freeze()  # a collection writes to all that it looks at: the ranks' copies of what was imported would part
        rank = _fork(count)
        if rank:
            _become(rank)
    os.environ.pop("CASTOR_FORK_LINE", None)


def _fork(count):
    """The rank of this process."""
    try:
        helper = os.fork()
    except OSError:
        helper = -1
    if helper:
        core.fork_finish(helper)
        return 0
    try:
        for rank in range(1, count):
            if not os.fork():
                return rank
    except OSError:
        os._exit(1)
    os._exit(0)


def _become(rank):
    log_file = ctypes.c_int32()
    status = core.fork_become(rank, ctypes.byref(log_file))
    if status >= 0:
        os._exit(status)
    os.environ["CASTOR_RANK"] = str(rank)
    if log_file.value >= 0:
        os.environ["CASTOR_LOG_FILE"] = str(log_file.value)
        if getattr(sys.stdout, "line_buffering", False):  # as Python does for a terminal
            sys.stdout.reconfigure(line_buffering=False)
    del os.environ["CASTOR_FORK_LINE"]
    core.environment_read()
    core.read_options()
