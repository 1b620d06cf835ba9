"""Where a script wraps its model in DistributedDataParallel, fully_shard is applied beneath it.

DistributedDataParallel itself stays PyTorch's: it compares the ranks' models, sends rank 0's values to all, and keeps buffers alike.
Only its reducer is replaced, by one that has no hooks on parameters (gradients.py averages)."""
import atexit
import contextlib
import functools
import itertools
import os
import threading

import torch
import torch.distributed as dist

from .. import core, patching
from ..backward import reducer
from ..common import store
from ..process import events, failures, leaving
from . import gradients, homes, steps

_DDP = "torch.nn.parallel.DistributedDataParallel"
_real_reducer, _real_logger = dist.Reducer, dist.Logger
_numbers = itertools.count()  # models are wrapped in the same order on all ranks
_said = []  # of each model that is sharded, its ranks


class _Thread(threading.local):
    ddp = None  # the wrapper whose reducer is being made
    blocks = policy = None  # chosen()


_thread = _Thread()


class Reducer:
    """Stands in for torch.distributed.Reducer."""

    def __init__(self, model):
        self.model = model

    @torch._disable_dynamo  # a compiled wrapper calls them each time
    def prepare_for_forward(self):
        self.model.free_gathered()

    @torch._disable_dynamo
    def prepare_for_backward(self, outputs):
        self.model.expecting = True

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: False


@contextlib.contextmanager
def chosen(blocks=None, policy=None):
    """How a model that is wrapped inside is sharded: `blocks`, a function of the module that lists those which are sharded by
    themselves, inner ones first; `policy`, a MixedPrecisionPolicy. None: as without a plugin object."""
    _thread.blocks, _thread.policy = blocks, policy
    try:
        yield
    finally:
        _thread.blocks = _thread.policy = None


def _make_reducer(parameters, bucket_indices, bucket_limits, process_group, expect_sparse, *more):
    parameters, ddp = list(parameters), _thread.ddp
    reason = reducer.why_not(parameters, process_group, expect_sparse)
    if reason is not None and any(p.is_cuda for p in parameters):
        reason = "its model is on devices, where castor.booster.plugin.TorchFSDPPlugin shards models"
    if reason is None and ddp is None:
        reason = "it was made without DistributedDataParallel"
    if reason is None and ddp.mixed_precision is not None:
        reason = "DistributedDataParallel(mixed_precision=...) casts by itself"
    if reason is not None:
        core.passthrough(f"DistributedDataParallel keeps PyTorch's reducer: {reason}".encode())
        return _real_reducer(parameters, bucket_indices, bucket_limits, process_group, expect_sparse, *more)
    blocks = homes.find_blocks(ddp.module, _thread.blocks)
    model = homes.Model(ddp.module, process_group, ddp.parameters_to_ignore, blocks, _thread.policy)
    model.number = next(_numbers)
    tell(model.world, len(model.states) - 1)
    return Reducer(model)


def tell(world, blocks):
    """A model is sharded over so many ranks."""
    _said.append(world)
    core.log(3, f"fsdp: fully_shard over {world} ranks: {blocks} blocks, and the rest".encode())


def _make_logger(made):
    return reducer.Logger(made) if isinstance(made, Reducer) else _real_logger(made)


def _init_helper(stock):
    @functools.wraps(stock)
    def _ddp_init_helper(self, *args, **kwargs):
        _thread.ddp = self
        try:
            return stock(self, *args, **kwargs)
        finally:
            _thread.ddp = None

    return _ddp_init_helper


def _step_aside(ddp, reason):
    """Gives a wrapped module PyTorch's own reducer back, before it trains on."""
    if not isinstance(ddp.reducer, Reducer):
        return
    core.passthrough(f"DistributedDataParallel gets PyTorch's reducer back: {reason}".encode())
    ddp.reducer.model.undo()
    parameters, expect_sparse = ddp._build_params_for_reducer()
    dist.Reducer, dist.Logger = _real_reducer, _real_logger
    try:
        ddp._ddp_init_helper(parameters, expect_sparse, {}, ddp.static_graph)
    finally:
        dist.Reducer, dist.Logger = _make_reducer, _make_logger


def _stepping_aside(reason, method):
    @functools.wraps(method)
    def stepping_aside(self, *args, **kwargs):
        _step_aside(self, reason)
        return method(self, *args, **kwargs)

    return stepping_aside


def _say_unused():
    if not _said and store.active():
        core.passthrough(b"no model was wrapped in DistributedDataParallel, which is where the plugin fsdp shards")


def install():
    if core.options.world_size > 1:
        raise core.Error("castor: the plugin fsdp is for scripts that wrap their model in DistributedDataParallel: start them with "
                         "`castor run --plugin fsdp -- torchrun --nproc-per-node N ...`, without --nproc")
    for name, default in (("precision", "fp32"), ("accumulate", 1), ("lazy_init", False)):
        if getattr(core.options, name) != default:
            raise core.Error(f"castor: CASTOR_{name.upper()} has no meaning under the plugin fsdp: PyTorch's fully_shard has "
                             + {"precision": "policies of its own (TorchFSDPPlugin(mixed_precision=...)), and autocast works",
                                "accumulate": "no micro-steps: use no_sync() in the script, or another plugin",
                                "lazy_init": "the model whole on each rank when it is wrapped: use another plugin"}[name])
    events.install(gradients.Observer())
    steps.install()
    patching.replace("torch.distributed.Reducer", lambda _: _make_reducer)
    patching.replace("torch.distributed.Logger", lambda _: _make_logger)
    patching.replace(f"{_DDP}._ddp_init_helper", _init_helper)
    for name, reason in reducer.ASIDE.items():
        patching.replace(f"{_DDP}.{name}", functools.partial(_stepping_aside, reason))
    failures.install(None)
    leaving.install()
    if core.options.rank_process in (0, os.getpid()):
        os.environ["CASTOR_RANK_PROCESS"] = str(os.getpid())
        if os.environ.get("WORLD_SIZE", "1") != "1":  # not in torchrun's own process
            atexit.register(_say_unused)
