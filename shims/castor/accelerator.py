"""The device that this process computes on (Colossal-AI: colossalai.accelerator)."""
import torch

__all__ = ["CpuAccelerator", "CudaAccelerator", "get_accelerator"]


class _Accelerator:
    def get_current_device(self):
        return torch.device(self.name) if self.name == "cpu" else torch.device(self.name, self.current_device())

    def get_version(self):
        return torch.version.cuda if self.name == "cuda" else ""


class CpuAccelerator(_Accelerator):
    """No device beside the processor; what belongs to devices does nothing."""

    name, communication_backend, is_synchronous = "cpu", "gloo", True

    def is_available(self):
        return True

    def current_device(self):
        return 0

    def set_device(self, device=None):
        pass

    def device_count(self):
        return 1

    def synchronize(self, device=None):
        pass

    def empty_cache(self):
        pass

    def autocast(self, enabled=True, dtype=torch.bfloat16, cache_enabled=True):
        return torch.autocast("cpu", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class CudaAccelerator(_Accelerator):
    """torch.cuda; what is not here is looked up there."""

    name, communication_backend, is_synchronous = "cuda", "nccl", False

    def set_device(self, device=None):
        torch.cuda.set_device(torch.cuda.current_device() if device is None else device)

    def autocast(self, enabled=True, dtype=torch.float16, cache_enabled=True):
        return torch.autocast("cuda", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    def __getattr__(self, name):
        return getattr(torch.cuda, name)


_chosen = None


def get_accelerator():
    """torch.cuda's if there is a device, else the processor."""
    global _chosen
    if _chosen is None:
        _chosen = CudaAccelerator() if torch.cuda.is_available() else CpuAccelerator()
    return _chosen
