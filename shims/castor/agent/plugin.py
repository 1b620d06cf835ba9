"""What a plugin with an engine replaces in PyTorch, before the script's first line runs."""
import os

import torch

from . import core, lazy
from .backward import accumulation, reducer
from .nodes import remote
from .optim import clipping, steps, swapping
from .precision import checkpoints, loss_scale, masters
from .process import compiler, events, failures, leaving, strays
from .single import alone, job


def install():
    compiler.install()
    accumulation.install()
    rank, world = (int(core.option_text(name)) for name in ("CASTOR_RANK", "CASTOR_WORLD_SIZE"))
    # Processes that this one starts (DataLoader workers, tools, ranks of the script's own) inherit the environment.
    is_first = int(core.option_text("CASTOR_RANK_PROCESS")) in (0, os.getpid())
    is_rank = rank >= 0 and is_first
    is_alone = is_first and world <= 1 and os.environ.get("WORLD_SIZE", "1") == "1"
    if is_first:
        os.environ["CASTOR_RANK_PROCESS"] = str(os.getpid())
    if world > 1:
        strays.watch_ranks(int(os.environ["CASTOR_RANK_PROCESS"]))
        job.refuse_process_groups(world, is_rank)
    ranks = job.install(rank, world, core.option_text("CASTOR_JOB")) if is_rank and world > 1 else None
    trainer = alone.install() if is_alone else ranks
    observers = [] if trainer is None else [trainer]
    if accumulation.active():  # after the ranks, which say whether this backward is synchronized
        observers.append(accumulation.Observer())
    if masters.install():
        checkpoints.install()
    if masters.dtype is torch.float16:
        observers.append(loss_scale.install())
    if core.option_text("CASTOR_LAZY_INIT") == "1":
        lazy.begin()
        observers.append(lazy.Observer())
    events.install(*observers)
    reducer.install()
    steps.install(trainer)
    clipping.install(ranks)
    swapping.install()
    if core.plugin_shards():
        remote.install()
    failures.install(ranks)
    leaving.install()
