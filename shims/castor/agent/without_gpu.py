"""CASTOR_COMPAT=1 on a machine without a GPU: "cuda" means the CPU, for scripts that were written for a GPU.

Where a device is an argument, the library reads it as the CPU (interpose/hooks/torch/device_names.c). This module replaces what
names no device: `.cuda()`, autocast, GradScaler and the functions of torch.cuda that scripts call without asking whether there is
a GPU. torch.cuda.is_available() stays False, and torch.cuda.device_count() 0. With a GPU nothing is replaced."""
import contextlib
import functools
import time

import torch

from . import core, patching

_CUDA = "torch.cuda."


class Event:
    """Marks a moment. What was called before it on the CPU has ended."""

    def __init__(self, enable_timing=False, blocking=False, interprocess=False, external=False):
        self._timed, self._at = enable_timing, None

    def record(self, stream=None):
        self._at = time.perf_counter()

    def elapsed_time(self, end_event):
        """Milliseconds between the two."""
        if not (self._timed and end_event._timed):
            raise ValueError("castor: both events need enable_timing=True")
        if self._at is None or end_event._at is None:
            raise ValueError("castor: both events must be recorded")
        return (end_event._at - self._at) * 1e3

    def query(self):
        return True

    def wait(self, stream=None):
        pass

    def synchronize(self):
        pass


class Stream:
    """The order of the calls: there is nothing beside it to wait for."""

    def __init__(self, device=None, priority=0, **kwargs):
        self.device, self.priority = torch.device("cpu"), priority

    def record_event(self, event=None):
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self):
        return True

    def wait_event(self, event):
        pass

    def wait_stream(self, stream):
        pass

    def synchronize(self):
        pass


_stream = Stream()


@contextlib.contextmanager
def in_stream(stream):
    yield


_said = False


def _say():
    """The library's line, of which Python asks once only: `.cuda()` is called for each tensor."""
    global _said
    if not _said:
        _said = True
        core.cuda_is_cpu_say()


def _nothing(*args, **kwargs):
    _say()


def _set_states(states):
    torch.set_rng_state(states[0])


# Functions of torch.cuda: what each does here.
_INSTEAD = {
    "current_device": lambda: 0,
    "set_device": _nothing,
    "synchronize": _nothing,
    "reset_peak_memory_stats": _nothing,
    "reset_max_memory_allocated": _nothing,
    "reset_max_memory_cached": _nothing,
    "set_per_process_memory_fraction": _nothing,
    "current_stream": lambda device=None: _stream,
    "default_stream": lambda device=None: _stream,
    "set_stream": _nothing,
    "stream": in_stream,
    "get_rng_state": lambda device="cuda": torch.get_rng_state(),
    "get_rng_state_all": lambda: [torch.get_rng_state()],
    "set_rng_state": lambda new_state, device="cuda": torch.set_rng_state(new_state),
    "set_rng_state_all": _set_states,
}


def _cuda(stock):
    @functools.wraps(stock)
    def cuda(self, device=None, non_blocking=False, memory_format=torch.preserve_format):
        _say()
        return self if self.is_cpu and memory_format is torch.preserve_format else self.to("cpu", memory_format=memory_format)

    return cuda


def _pin_memory(stock):
    @functools.wraps(stock)
    def pin_memory(self, device=None):
        # Pinned memory is memory of its own, on a GPU's machine as well.
        _say()
        return self.clone()

    return pin_memory


def _autocast(stock):
    @functools.wraps(stock)
    def __init__(self, device_type, dtype=None, enabled=True, cache_enabled=None):
        if device_type == "cuda":
            _say()
            device_type, dtype = "cpu", torch.float16 if dtype is None else dtype
        stock(self, device_type, dtype, enabled, cache_enabled)

    return __init__


def _scaler(stock):
    @functools.wraps(stock)
    def __init__(self, device="cuda", *args, **kwargs):
        stock(self, "cpu" if torch.device(device).type == "cpu" else device, *args, **kwargs)

    return __init__


def _group(stock):
    @functools.wraps(stock)
    def init_process_group(backend=None, *args, **kwargs):
        if isinstance(backend, str) and "nccl" in backend:
            _say()
            backend = "gloo"
            kwargs.pop("device_id", None)
        return stock(backend, *args, **kwargs)

    return init_process_group


def _new_group(stock):
    @functools.wraps(stock)
    def new_group(ranks=None, timeout=None, backend=None, *args, **kwargs):
        return stock(ranks, timeout, "gloo" if isinstance(backend, str) and "nccl" in backend else backend, *args, **kwargs)

    return new_group


def _mesh(stock):
    @functools.wraps(stock)
    def __init__(self, device_type, *args, **kwargs):
        stock(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    return __init__


def _ddp(stock):
    @functools.wraps(stock)
    def __init__(self, module, device_ids=None, output_device=None, *args, **kwargs):
        # A module on the CPU has no device to be moved to.
        stock(self, module, None, None, *args, **kwargs)

    return __init__


def _deserialize(storage, location):
    """For torch.load: a storage that was saved on a GPU, or is to be loaded to one, stays on the CPU."""
    if not location.startswith("cuda"):
        return None
    _say()
    return storage


def wanted():
    """Asks NVML first, as PyTorch does, so that a process that forks later has no context of CUDA."""
    return core.options.compat and torch.cuda.device_count() == 0


def install():
    if not wanted():
        return
    for name, instead in _INSTEAD.items():
        patching.replace(_CUDA + name, lambda stock, instead=instead: functools.wraps(stock)(lambda *args, **kwargs: instead(*args, **kwargs)))
    for name in ("__init__", "__enter__", "__exit__"):
        patching.replace(_CUDA + "device." + name, lambda stock: functools.wraps(stock)(lambda *args: _nothing()))
    patching.replace(_CUDA + "Event", lambda stock: Event)
    patching.replace(_CUDA + "Stream", lambda stock: Stream)
    patching.replace("torch.Tensor.cuda", _cuda)
    patching.replace("torch.Tensor.pin_memory", _pin_memory)
    patching.replace("torch.Tensor.record_stream", lambda stock: lambda self, stream: None)
    patching.replace("torch.autocast.__init__", _autocast)
    patching.replace("torch.amp.GradScaler.__init__", _scaler)
    if torch.distributed.is_available():
        patching.replace("torch.distributed.distributed_c10d.init_process_group", _group)
        patching.replace("torch.distributed.distributed_c10d.new_group", _new_group)
        patching.replace("torch.distributed.device_mesh.DeviceMesh.__init__", _mesh)
        patching.replace("torch.nn.parallel.DistributedDataParallel.__init__", _ddp)
    torch.serialization.register_package(15, lambda storage: None, _deserialize)  # before CUDA's own, 20
    core.cuda_is_cpu()
