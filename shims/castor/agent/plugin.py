"""Installs a plugin with an engine: before the script's first line runs, or when a plugin object asks for it (engine_start.py)."""
import os

import torch

from . import core, lazy
from .backward import accumulation, reducer
from .common import store, traced
from .device import activations, adoption, casts, passes, step_parts
from .device_ranks import buckets
from .nodes import remote
from .optim import clipping, on_host, steps, swapping
from .precision import checkpoints, loss_scale, masters
from .process import compiler, events, failures, leaving, strays
from .nproc import alone, draws, job, layout, members

trainer = None  # what stands for the script's process (nproc/script_process.py); None: it has ranks of its own


def prepare():
    """Before ranks are forked: what each of them would find out by itself, with the same result."""
    draws.random_operations()


def install():
    global trainer
    store.begin()
    compiler.install()
    accumulation.install()
    rank, world = core.options.rank, core.options.world_size
    # Processes that this one starts (DataLoader workers, tools, ranks of the script's own) inherit the environment.
    is_first = core.options.rank_process in (0, os.getpid())
    is_rank = rank >= 0 and is_first
    of_one = world <= 1 and os.environ.get("WORLD_SIZE", "1") == "1"
    is_alone = is_first and of_one
    if is_first:
        os.environ["CASTOR_RANK_PROCESS"] = str(os.getpid())
    if world > 1:
        strays.watch_ranks(int(os.environ["CASTOR_RANK_PROCESS"]))
        job.refuse_process_groups(world, is_rank)
    activations.install()  # within what divides the calls of models
    ranks = job.install(rank, world, core.options.job) if is_rank and world > 1 else None
    if is_first:  # others may only load data
        layout.say_unused()
    if layout.is_asked() and ranks is None:
        members.install()
    trainer = alone.install() if is_alone else ranks
    observers = [] if trainer is None else [trainer]
    if torch.version.cuda:
        adoption.install()
        step_parts.install()
        on_host.install()
        casts.install()
        passes.install()
        buckets.install()
    if accumulation.active():  # after the ranks' observer, which decides whether this backward is synchronized
        observers.append(accumulation.Observer())
        traced.need_castor()
    if core.options.lazy_init:
        lazy.begin()
        observers.append(lazy.Observer())
    events.install(*observers)
    reducer.install()
    steps.install(trainer)
    clipping.install(ranks)
    swapping.install()
    install_precision()
    if core.plugin_shards() or torch.version.cuda:
        remote.install()
    failures.install(ranks)
    leaving.install()


_precisions = set()  # what is installed for: "masters", "scale"


def install_precision(**scale):
    """What CASTOR_PRECISION says, for models from here on. `scale`: the fields of a loss scale that are not the default."""
    loss_scale.end()
    if not masters.install():
        return
    traced.need_castor()
    if masters.dtype is torch.float16:
        loss_scale.begin(**scale)
        if "scale" not in _precisions:
            events.observe(loss_scale.install())
    if "masters" not in _precisions:
        checkpoints.install()
        reducer.install_precision()
    _precisions.update({"masters", "scale"} if masters.dtype is torch.float16 else {"masters"})
