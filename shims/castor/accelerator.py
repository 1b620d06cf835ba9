"""The device that this process computes on (Colossal-AI: colossalai.accelerator)."""
import abc
import platform

import torch

from .agent.without_gpu import Event, Stream, in_stream

__all__ = ["BaseAccelerator", "CpuAccelerator", "CudaAccelerator", "auto_set_accelerator", "get_accelerator", "set_accelerator"]


class BaseAccelerator(abc.ABC):
    """What a script may ask of the device, whatever it is: `name`, `communication_backend`, `is_synchronous`, and the functions of
    torch.cuda by their names."""

    name = communication_backend = is_synchronous = None

    def __repr__(self):
        return f"{type(self).__name__}(name={self.name!r}, communication_backend={self.communication_backend!r}, is_synchronous={self.is_synchronous})"

    @abc.abstractmethod
    def get_current_device(self):
        """A torch.device."""

    @abc.abstractmethod
    def get_version(self):
        """Of the toolkit."""

    def set_to_device(self, models):
        """The module, or list or tuple of modules, on this device."""
        if isinstance(models, (list, tuple)):
            return type(models)(model.to(self.get_current_device()) for model in models)
        return models.to(self.get_current_device())


class CpuAccelerator(BaseAccelerator):
    """No device beside the processor. What belongs to devices does nothing; they hold no memory, and their random generator is the
    CPU's."""

    name, communication_backend, is_synchronous = "cpu", "gloo", True

    def get_current_device(self):
        return torch.device("cpu")

    def get_version(self):
        return ""

    def is_available(self):
        return True

    def current_device(self):
        return 0

    def set_device(self, device=None):
        pass

    def device_count(self):
        return 1

    def get_device_name(self, device=None):
        return platform.processor() or platform.machine()

    def synchronize(self, device=None):
        pass

    def empty_cache(self):
        pass

    def _no_bytes(self, device=None):
        return 0

    memory_allocated = max_memory_allocated = memory_reserved = max_memory_reserved = utilization = _no_bytes

    def memory_stats(self, device=None):
        return {}

    def _nothing(self, *args, **kwargs):
        pass

    reset_peak_memory_stats = reset_max_memory_allocated = reset_max_memory_cached = set_per_process_memory_fraction = set_stream = _nothing

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def seed(self):
        torch.seed()

    seed_all = seed

    def initial_seed(self):
        return torch.initial_seed()

    def get_rng_state(self, device=None):
        return torch.get_rng_state()

    def get_rng_state_all(self):
        return [torch.get_rng_state()]

    def set_rng_state(self, new_state, device=None):
        torch.set_rng_state(new_state)

    def set_rng_state_all(self, new_states):
        torch.set_rng_state(new_states[0])

    def Stream(self, device=None, priority=0, **kwargs):
        return Stream(device, priority, **kwargs)

    def Event(self, enable_timing=False, blocking=False, interprocess=False):
        return Event(enable_timing, blocking, interprocess)

    def current_stream(self, device=None):
        return Stream()

    default_stream = current_stream

    def stream(self, stream_):
        return in_stream(stream_)

    def autocast(self, enabled=True, dtype=torch.bfloat16, cache_enabled=True):
        return torch.autocast("cpu", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    def __getattr__(self, name):
        if hasattr(torch.cuda, name) and not name.startswith("_"):
            raise AttributeError(f"castor: the CPU has no {name}: ask whether get_accelerator().name is 'cuda'")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class CudaAccelerator(BaseAccelerator):
    """torch.cuda; what is not here is looked up there."""

    name, communication_backend, is_synchronous = "cuda", "nccl", False

    def get_current_device(self):
        return torch.device("cuda", torch.cuda.current_device())

    def get_version(self):
        return torch.version.cuda

    def set_device(self, device=None):
        torch.cuda.set_device(torch.cuda.current_device() if device is None else device)

    def autocast(self, enabled=True, dtype=torch.float16, cache_enabled=True):
        return torch.autocast("cuda", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    def __getattr__(self, name):
        return getattr(torch.cuda, name)


_KNOWN = {"cuda": CudaAccelerator, "cpu": CpuAccelerator}
_chosen = None


def set_accelerator(accelerator):
    """Decides what get_accelerator() returns: "cuda", "cpu" or a BaseAccelerator. ValueError: another name. TypeError: something else."""
    global _chosen
    if isinstance(accelerator, str):
        if accelerator not in _KNOWN:
            raise ValueError(f"castor: set_accelerator({accelerator!r}): expected one of {', '.join(map(repr, _KNOWN))}, or a BaseAccelerator")
        accelerator = _KNOWN[accelerator]()
    elif not isinstance(accelerator, BaseAccelerator):
        raise TypeError(f"castor: set_accelerator() of a {type(accelerator).__name__}: expected 'cuda', 'cpu' or a BaseAccelerator")
    _chosen = accelerator


def auto_set_accelerator():
    """torch.cuda's if there is a device, else the processor."""
    set_accelerator("cuda" if torch.cuda.is_available() else "cpu")


def get_accelerator():
    """What set_accelerator() has chosen; at first torch.cuda's if there is a device, else the processor."""
    if _chosen is None:
        auto_set_accelerator()
    return _chosen
