"""What the launcher that started this process (torchrun, Slurm) says in its environment: the place of a script that makes no process
group, and what to do about such a script."""
import multiprocessing
import os
import re
import sys

import torch

from .. import core

# Of its variables those that CASTOR_NPROC=auto hides (interpose/job/cluster.c), and scripts look up.
_HIDDEN = re.compile(r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|(SLURM|OMPI|TORCHELASTIC)_\w+")
ONE_RANK = "nothing is shared: the process group has one rank. Start more: torchrun --nproc-per-node N"


def place():
    """(rank, ranks) as PyTorch's launchers tell it; None: this process was started alone, or by a process of the script."""
    try:
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return None
    return (rank, ranks) if 0 <= rank < ranks > 1 and multiprocessing.parent_process() is None else None


def why_nothing_shared():
    """Of a script that has trained a step without a process group, or in a group of one rank."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return ONE_RANK
    found, script = place(), f"python {sys.argv[0] or 'train.py'}"
    start = f"castor run --plugin {core.options.plugin} --nproc"
    if found is None:
        return f"nothing is shared: one process trains. Start more ranks: {start} N -- {script}"
    one = "Leave torchrun out" if "TORCHELASTIC_RUN_ID" in os.environ else "Start it once"
    return (f"the script makes no process group: each of its {found[1]} processes trains a model of its own. Set CASTOR_NPROC=auto, which splits the "
            f"script over them, or {one[0].lower()}{one[1:]}, {start} {found[1]} -- {script}, or call init_process_group and wrap the model in DistributedDataParallel")


def why_missing(error):
    """What to say of an exception that ends the script, if it looked up what CASTOR_NPROC=auto hides; else ""."""
    name = error.args[0] if type(error) is KeyError and error.args else ""
    if core.options.nproc != "auto" or core.options.rank < 0 or not isinstance(name, str) or not _HIDDEN.fullmatch(name):
        return ""
    return f"the script looks up {name}, which CASTOR_NPROC=auto hides, for scripts of one process: leave CASTOR_NPROC=auto out"
