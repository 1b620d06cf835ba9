"""Processes that a rank of `castor run --nproc` has started. They take no part in the ranks' common work. A script that trains
there, or makes a process group there, has ranks of its own, and is refused."""
import os
import signal
import sys

from .. import core

_rank_process = None  # the rank's process id, also in processes that it has started; None: no ranks of `--nproc`


def watch_ranks(pid):
    global _rank_process
    _rank_process = pid


def is_stray():
    """Whether a rank of `--nproc` has started this process, which takes no part in the ranks' common work."""
    return _rank_process is not None and os.getpid() != _rank_process


def refuse(what, start):
    """Refuses a script that has ranks of its own: says so once, and ends the job. That includes the rank that started this
    process, which would go on with a model that nobody has trained."""
    if core.options.nproc == "auto":
        core.refuse(f"the script {what}, and CASTOR_NPROC=auto is for scripts of one process: leave CASTOR_NPROC=auto out".encode())
    else:
        core.refuse(f"the script {what}, and --nproc is for scripts of one process. Start it without --nproc: castor run --plugin "
                    f"{core.options.plugin} -- {start}".encode())
    sys.stdout.flush()
    if is_stray():
        try:
            os.kill(_rank_process, signal.SIGTERM)
        except ProcessLookupError:
            pass
    os._exit(1)


def refuse_group():
    name = sys.argv[0]
    refuse("makes a process group of its own", f"torchrun --nproc-per-node {core.options.world_size} {name} (or "
           f"python {name}, where it starts its ranks)")


def refuse_training():
    refuse("starts processes that train", f"python {sys.argv[0]}")
