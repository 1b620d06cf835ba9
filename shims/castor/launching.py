"""castor.launch, castor.launch_from_torch and castor.initialize: a job's ranks, and its engine (Colossal-AI:
colossalai.initialize)."""
import argparse
import functools
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .agent import core
from .engine import Engine, _parallel_groups
from .engine._pipeline_schedule import PipelineSchedule
from .engine.gradient_handler import BaseGradientHandler, DataParallelGradientHandler, ReplicaGradientHandler, TiedGradientHandler
from .trainer.utils import is_rank_0
from .utils.common import set_seed
from .utils.gradient_accumulation import accumulate_gradient

core.require()

_config = {}  # launch()'s `config`: defaults for initialize()
_CONFIGURABLE = ("clip_grad_norm", "gradient_accumulation", "gradient_handler", "parallel")


def _config_first(function):
    """Takes a dict as the first argument for `config`, as Colossal-AI's functions do."""

    @functools.wraps(function)
    def called(*args, **kwargs):
        if args and isinstance(args[0], dict):
            args, kwargs = args[1:], {**kwargs, "config": args[0]}
        return function(*args, **kwargs)

    return called


@_config_first
def launch(rank, world_size, host, port, backend=None, local_rank=None, seed=1024, verbose=True, config=None):
    """Starts torch.distributed and seeds the random generators.

    Args:
        rank, world_size: this process's rank, and the number of ranks.
        host, port: where rank 0 listens.
        backend: "gloo", "nccl", ...; by default nccl if CUDA is available, else gloo.
        local_rank: the index of this process's GPU; by default rank modulo the number of GPUs.
        seed: of Python's, NumPy's and PyTorch's generators; None leaves them alone.
        config: a dict; `gradient_accumulation`, `clip_grad_norm` and `gradient_handler` are initialize()'s defaults. `parallel`:
            {"pipeline": S, "tensor": {"size": t, "mode": "1d"}} divides the ranks into pipeline stages and tensor-parallel groups, and
            with `NUM_MICRO_BATCHES` initialize() makes a PipelineSchedule. Other names in capitals are the script's own. A dict as
            the first argument is taken too. ValueError: it holds another name, or the ranks do not divide.

    An existing process group is kept."""
    _configure(config)
    if torch.cuda.is_available():
        torch.cuda.set_device(rank % torch.cuda.device_count() if local_rank is None else local_rank)
    if not dist.is_initialized():
        address = f"[{host}]" if ":" in host else host
        dist.init_process_group(backend or ("nccl" if torch.cuda.is_available() else "gloo"), rank=rank, world_size=world_size,
                                init_method=f"tcp://{address}:{port}")
    _parallel_groups.configure(_config.get("parallel") or {})
    if seed is not None:
        set_seed(seed)
    if verbose and is_rank_0():
        core.log(2, f"launched: {dist.get_world_size()} ranks, backend {dist.get_backend()}".encode())


@_config_first
def launch_from_torch(backend=None, seed=1024, verbose=True, config=None):
    """launch() with the variables that torchrun sets in the environment. RuntimeError: one is missing."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise RuntimeError(f"castor: launch_from_torch found no {' and no '.join(missing)} in the environment: start the script "
                           "with torchrun, or call castor.launch(rank, world_size, host, port)")
    rank, world_size, host, port = (os.environ[name] for name in names)
    launch(int(rank), int(world_size), host, int(port), backend, int(os.environ.get("LOCAL_RANK", rank)), seed, verbose, config)


@_config_first
def launch_from_slurm(host, port, backend=None, seed=1024, verbose=True, config=None):
    """launch() with the variables that srun sets. RuntimeError: one is missing."""
    rank, world_size, local_rank = _from_launcher("launch_from_slurm", "srun", "SLURM_PROCID", "SLURM_NPROCS", "SLURM_LOCALID")
    launch(rank, world_size, host, port, backend, local_rank, seed, verbose, config)


@_config_first
def launch_from_openmpi(host, port, backend=None, seed=1024, verbose=True, config=None):
    """launch() with the variables that Open MPI's mpirun sets. RuntimeError: one is missing."""
    names = (f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK"))
    rank, world_size, local_rank = _from_launcher("launch_from_openmpi", "mpirun", *names)
    launch(rank, world_size, host, port, backend, local_rank, seed, verbose, config)


def _from_launcher(function, launcher, *names):
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise RuntimeError(f"castor: {function} found no {' and no '.join(missing)} in the environment: start the script with {launcher}, or "
                           "call castor.launch(rank, world_size, host, port)")
    return [int(os.environ[name]) for name in names]


def get_default_parser():
    """An argparse.ArgumentParser of launch()'s arguments, to which a script adds its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", help="a file of the configuration")
    parser.add_argument("--host", help="where rank 0 listens")
    parser.add_argument("--port", type=int, help="the port there")
    parser.add_argument("--world_size", type=int, help="the number of ranks")
    parser.add_argument("--rank", type=int, help="this process's rank")
    parser.add_argument("--local_rank", type=int, help="its rank on its node")
    parser.add_argument("--backend", default=None, help="of torch.distributed")
    return parser


def initialize(model, optimizer, criterion=None, train_dataloader=None, test_dataloader=None, lr_scheduler=None, *,
               gradient_accumulation=None, clip_grad_norm=None, gradient_handlers=None, schedule=None, verbose=True):
    """Makes an Engine. Returns (engine, train_dataloader, test_dataloader, lr_scheduler).

    Args:
        model, optimizer, criterion: the engine's.
        gradient_accumulation: micro-batches per step, k; above 1, optimizer, train_dataloader, handlers and lr_scheduler
            accumulate (accumulate_gradient).
        clip_grad_norm: the engine's.
        gradient_handlers: a list of BaseGradientHandler, or of such classes, which are called with (model, optimizer).
        schedule: the engine's.

    Call it on every rank. With several ranks the model is wrapped in DistributedDataParallel, unless it contains one already
    or has nothing to train. With gradient handlers it is not wrapped, but gets rank 0's parameters and buffers. With pipeline
    stages (launch's `parallel`) `model` is this rank's stage; it is not wrapped either: a handler averages over the ranks of equal
    stage, whose parameters a plugin's store keeps once, another one adds the gradients of parameters that several stages share (castor.pipeline.partition)."""
    accumulate_size = _chosen(gradient_accumulation, "gradient_accumulation", 1)
    clip_grad_norm = _chosen(clip_grad_norm, "clip_grad_norm", 0.0)
    if gradient_handlers is None and "gradient_handler" in _config:
        gradient_handlers = [_handler_named(row) for row in _config["gradient_handler"]]
    groups = _parallel_groups.groups()
    if groups is not None:
        gradient_handlers = _stage_handlers(model, groups, gradient_handlers)
        if schedule is None and groups.stages > 1:
            schedule = PipelineSchedule(_config.get("NUM_MICRO_BATCHES", 1))
    elif dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        model = _on_all_ranks(model, gradient_handlers)
    if gradient_handlers is not None:
        gradient_handlers = [h if isinstance(h, BaseGradientHandler) or not callable(h) else h(model, optimizer) for h in gradient_handlers]
    if accumulate_size != 1:
        optimizer, cut, gradient_handlers, lr_scheduler = accumulate_gradient(
            model, optimizer, train_dataloader if train_dataloader is not None else (), accumulate_size, gradient_handlers, lr_scheduler)
        train_dataloader = cut if train_dataloader is not None else None
    engine = Engine(model, optimizer, criterion, gradient_handlers, clip_grad_norm, schedule)
    if verbose and is_rank_0():
        core.log(2, f"engine: {'DistributedDataParallel, ' if isinstance(model, DistributedDataParallel) else ''}"
                    f"{accumulate_size} micro-batches a step".encode())
    return engine, train_dataloader, test_dataloader, lr_scheduler


def _configure(config):
    if config is None:
        return
    unknown = [name for name in config if name not in _CONFIGURABLE and not name.isupper()]
    if unknown:
        raise ValueError(f"castor: the configuration has {', '.join(map(repr, unknown))}: expected {', '.join(_CONFIGURABLE)}")
    _config.clear()
    _config.update(config)


def _chosen(value, name, default):
    return _config.get(name, default) if value is None else value


def _handler_named(row):
    """The class for {'type': its name}."""
    if row["type"] != "DataParallelGradientHandler":
        raise ValueError(f"castor: no gradient handler is called {row['type']!r}: expected 'DataParallelGradientHandler'")
    return DataParallelGradientHandler


def _on_all_ranks(model, gradient_handlers):
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        return model
    parameters = list(model.parameters())
    if gradient_handlers is not None:
        for tensor in [*parameters, *model.buffers()]:
            dist.broadcast(tensor.detach(), 0)
        return model
    if not any(p.requires_grad for p in parameters):
        return model
    devices = {p.device for p in parameters}
    device = devices.pop()
    return DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" and not devices else None)


def _stage_handlers(model, groups, handlers):
    """The handlers of a pipeline's stage, whose ranks of equal stage get the first one's parameters and buffers."""
    if groups.data_group is not None:
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.detach(), groups.data_ranks[0], group=groups.data_group)
    tied = [TiedGradientHandler(model, groups)] if TiedGradientHandler.of(model) else []
    if handlers is None:
        handlers = [] if groups.data_group is None else [functools.partial(ReplicaGradientHandler, process_group=groups.data_group)]
    return [*tied, *handlers]
