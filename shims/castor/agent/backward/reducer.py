"""DistributedDataParallel's reducer and logger, replaced beneath the stock class.

`torch.nn.parallel.distributed` looks `dist.Reducer` and `dist.Logger` up when a module is wrapped. Everything else of
DDP (broadcasts, buffers, no_sync, pickling) stays PyTorch's."""
import functools
import typing
import weakref

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import DDPLoggingData

from .. import core, lazy, patching
from ..common import store, tensors
from ..nodes import grouping
from ..precision import casts, masters
from ..process import launchers
from . import gradients

_DDP = "torch.nn.parallel.DistributedDataParallel"
_real_reducer, _real_logger = dist.Reducer, dist.Logger
ASIDE = {  # methods of DistributedDataParallel: why one that is called leaves the module to PyTorch
    "register_comm_hook": "the script registers a communication hook",
    "_register_builtin_comm_hook": "the script registers a communication hook",
    "join_hook": "the script trains on uneven inputs (Join)",
    "_update_process_group": "the script changes the process group",
}


at_sync = []  # called with a module and its process group before its parameters are made alike, on all ranks together
at_release = []  # called with parameters whose gradients PyTorch's reducer sums from there on
on_devices = None  # Devices: for parameters on devices
_synced = []  # weak references to the parameters that ranks have got from rank 0 since the last wrapper began


class Devices(typing.NamedTuple):
    why_not: typing.Callable  # (parameters, expect_sparse)
    control_of: typing.Callable  # (process_group, parameters): over which the ranks compare what must be alike
    make: typing.Callable  # (process_group, parameters, find_unused)
    have_alike: typing.Callable  # (process_group, parameters): for each, whether all ranks share its memory
    are_alike: typing.Callable  # (process_group, parameters): whether the ranks have the same values, where they must


def why_not(parameters, process_group, expect_sparse):
    """Why this module's gradients must go through PyTorch's own reducer; None when they need not."""
    if process_group.size() == 1 and not masters.serves_one_process(parameters):
        return launchers.ONE_RANK
    if serves_on_devices(parameters):
        return on_devices.why_not(parameters, expect_sparse)
    if any(expect_sparse):
        return "a parameter has sparse gradients"
    for p in parameters:
        why = tensors.why_unsupported(p)
        if why:
            return f"a parameter of shape {tuple(p.shape)} cannot be shared: {why}"
    return None


def serves_on_devices(parameters):
    return on_devices is not None and bool(parameters) and all(p.is_cuda for p in parameters)


class StandsIn:
    """For torch.distributed.Reducer, over a synchronizer."""

    find_unused = False
    summed = ()  # references to the parameters

    def prepare_for_forward(self):
        self.late = False
        if self.broken:
            self.refuse_broken()

    def prepare_for_backward(self, outputs):
        self.expect()

    def still_expects(self):
        """PyTorch's rule: a forward's gradients may come in several backward passes, each parameter's in one of them. A wrapper that
        looks for unused parameters ends with the first."""
        return not (self.delayed or self.late or self.find_unused) and len(self.ready) < len(self.hooks)

    def _set_static_graph(self):
        # A parameter may get its gradient in several parts in one backward: they are added at its end.
        self.delayed = True

    def _rebuild_buckets(self):
        return False

    def set_logger(self, logger):
        pass

    def _delay_all_reduce(self):
        self.delayed = True

    def _set_forward_pass_work_handle(self, *args):
        pass

    def _set_ddp_runtime_logging_sample_rate(self, rate):
        pass

    def _check_reducer_finalized(self):
        pass

    def _remove_autograd_hooks(self):
        self.remove_hooks()


class Reducer(StandsIn, gradients.Synchronizer):
    def __init__(self, group, parameters, find_unused=False):
        super().__init__(group, parameters)
        self.find_unused = find_unused


def _make(process_group, parameters, find_unused):
    if serves_on_devices(parameters):
        return on_devices.make(process_group, parameters, find_unused)
    return Reducer(grouping.group_of(process_group, parameters), parameters, find_unused)


def of_replicas(process_group, parameters):
    """A reducer for parameters that no DistributedDataParallel wraps, alike on all ranks of the group; None: the plugin has none for
    them, and they stay the script's."""
    if not store.active() or dist.Reducer is not _make_reducer or why_not(parameters, process_group, []) is not None:
        return None
    return _make(process_group, parameters, False)


class Logger:
    """Stands in for torch.distributed.Logger, whose constructor wants a real reducer."""

    def __init__(self, reducer):
        self._texts, self._numbers = {}, {}

    def set_construction_data_and_log(self, module_name, device_ids, output_device, broadcast_buffers, *more):
        self._texts = {"module_name": module_name}
        self._numbers = {"broadcast_buffers": int(broadcast_buffers), "rank": dist.get_rank(), "world_size": dist.get_world_size()}

    def _get_ddp_logging_data(self):
        """The part of PyTorch's logging data that Castor's reducer has: it has no buckets. Lightning reads one entry when a fit
        ends."""
        data = DDPLoggingData()
        data.strs_map, data.ints_map = self._texts, self._numbers
        return data

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


said_why = False  # a wrapper keeps PyTorch's reducer


def _make_reducer(parameters, bucket_indices, bucket_limits, process_group, expect_sparse, bucket_bytes_cap=0, find_unused_parameters=False,
                  *more):
    parameters = list(parameters)
    reason = why_not(parameters, process_group, expect_sparse)
    if reason is None and not _were_synced(parameters) and not _are_alike(process_group, parameters):
        reason = "the ranks give its parameters different values (init_sync=False, or a wrapper that was unpickled)"
        if masters.dtype is not None:
            masters.refuse(reason)
    if reason is None:
        made = _make(process_group, parameters, find_unused_parameters)
        made.summed = [weakref.ref(p) for p in parameters]
        return made
    if process_group.size() > 1:
        global said_why
        said_why = True
        core.passthrough(f"DistributedDataParallel keeps PyTorch's reducer: {reason}".encode())
    elif dist.get_world_size() == 1:  # else the script made this group: the run as a whole is not plain
        core.passthrough(reason.encode())
    return _real_reducer(parameters, bucket_indices, bucket_limits, process_group, expect_sparse, bucket_bytes_cap, find_unused_parameters, *more)


def _were_synced(parameters):
    synced = {id(reference()) for reference in _synced}
    return all(id(p) in synced for p in parameters)


def _are_alike(process_group, parameters):
    """Whether the ranks have the same values, where they are to share them. On all ranks together."""
    if process_group.size() == 1:
        return True
    if serves_on_devices(parameters):
        return on_devices.are_alike(process_group, parameters)
    mine = torch.tensor([tensors.digest(p, core.digest) >> 1 for p in parameters], device="cpu")
    every = [torch.empty_like(mine) for _ in range(process_group.size())]
    dist.all_gather(every, mine, group=process_group)
    return all(torch.equal(other, mine) for other in every)


_DIFFERS = "same model across all ranks", "of the same param in process 0"  # what PyTorch's errors say on ranks whose models differ from rank 0's


def _verify(stock):
    """PyTorch raises only on ranks whose parameters differ from rank 0's; rank 0 would wait for them."""

    @functools.wraps(stock)
    def verify_param_shape_across_processes(process_group, tensors, *args, **kwargs):
        _synced.clear()
        group = None
        if why_not(tensors, process_group, []) is None:
            group = on_devices.control_of(process_group, tensors) if serves_on_devices(tensors) else grouping.group_of(process_group, tensors)
        error = None
        try:
            result = stock(process_group, tensors, *args, **kwargs)
        except RuntimeError as raised:
            if not any(words in str(raised) for words in _DIFFERS):
                raise  # the others may wait in PyTorch's own collectives, and come to no other
            error = raised
        if group is not None:
            differ = [rank for rank, (flag,) in enumerate(group.gather([float(error is not None)], "the check of the models"))
                      if flag]
            if differ and error is None:
                raise core.GroupError(f"castor: rank {differ[0]} finds that its model differs from rank 0's: build the same "
                                      "model on every rank; its own message says where it differs")
        if error is not None:
            raise error
        return result

    return verify_param_shape_across_processes


def _adopt_before_broadcast(stock):
    """DistributedDataParallel sends rank 0's parameters to all ranks, which write them over their own, although they are equal.
    Adoption does the same without a copy for each rank. Only the rest is sent."""

    @functools.wraps(stock)
    def sync_module_states(module, process_group, broadcast_bucket_size, src, params_and_buffers_to_ignore, *args, **kwargs):
        _synced[:] = map(weakref.ref, module.parameters())
        for each in at_sync:
            each(module, process_group)
        if not lazy.was_wanted():
            return stock(module, process_group, broadcast_bucket_size, src, params_and_buffers_to_ignore, *args, **kwargs)
        ignored = set(params_and_buffers_to_ignore)
        named = {name: p for name, p in module.named_parameters() if name not in ignored}
        if src == 0 and serves_on_devices(named.values()):
            ignored |= {name for name, is_alike in zip(named, on_devices.have_alike(process_group, list(named.values()))) if is_alike}
        named = {name: p for name, p in named.items() if p.requires_grad}
        sparse = any(getattr(m, "sparse", False) for m in module.modules())
        serves = src == 0 and named and not serves_on_devices(named.values()) and masters.dtype is None and not why_not(named.values(), process_group, [sparse])
        if serves and grouping.one_node_of(process_group):  # the ranks of each node would have those of its first one
            store.adopt(grouping.group_of(process_group), list(named.values()))
            ignored |= named.keys()
        return stock(module, process_group, broadcast_bucket_size, src, ignored, *args, **kwargs)

    return sync_module_states


def _init_helper(stock):
    """CASTOR_PRECISION: parameters adopted meanwhile are of this module. PyTorch's own reducer, without masters, is refused."""

    @functools.wraps(stock)
    def _ddp_init_helper(self, parameters, expect_sparse_gradient, *args, **kwargs):
        reason = why_not(parameters, self.process_group, expect_sparse_gradient)
        if reason is None and self.mixed_precision is not None:
            reason = "DistributedDataParallel(mixed_precision=...) casts as well"
        if reason is not None:
            masters.refuse(reason)
        with casts.wrapping(self.module):
            return stock(self, parameters, expect_sparse_gradient, *args, **kwargs)

    return _ddp_init_helper


def _make_logger(reducer):
    return Logger(reducer) if isinstance(reducer, StandsIn) else _real_logger(reducer)


def step_aside(ddp, reason):
    """Gives a wrapped module PyTorch's own reducer back, before it trains on."""
    if not isinstance(ddp.reducer, StandsIn):
        return
    if masters.dtype is not None:
        masters.refuse(reason)
    core.passthrough(f"DistributedDataParallel gets PyTorch's reducer back: {reason}".encode())
    ddp.reducer.remove_hooks()
    parameters, expect_sparse = ddp._build_params_for_reducer()
    store.release(parameters)
    for release in at_release:
        release(parameters)
    dist.Reducer, dist.Logger = _real_reducer, _real_logger
    try:
        ddp._ddp_init_helper(parameters, expect_sparse, {}, ddp.static_graph)
    finally:
        dist.Reducer, dist.Logger = _make_reducer, _make_logger


def install():
    patching.replace("torch.distributed.Reducer", lambda _: _make_reducer)
    patching.replace("torch.distributed.Logger", lambda _: _make_logger)
    patching.replace("torch.nn.parallel.distributed._verify_param_shape_across_processes", _verify)
    patching.replace("torch.nn.parallel.distributed._sync_module_states", _adopt_before_broadcast)
    for name, reason in ASIDE.items():
        patching.replace(f"{_DDP}.{name}", functools.partial(_stepping_aside, reason))


def install_precision():
    """Modules that are wrapped from here on compute in 16 bits."""
    patching.replace(f"{_DDP}._ddp_init_helper", _init_helper)


def _stepping_aside(reason, method):
    @functools.wraps(method)
    def stepping_aside(self, *args, **kwargs):
        step_aside(self, reason)
        return method(self, *args, **kwargs)

    return stepping_aside
