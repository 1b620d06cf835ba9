"""Looks at a job's memory from outside: the device's, as NVML counts it, and what of the host's is no longer available."""
import ctypes


class Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def available_bytes():
    with open("/proc/meminfo") as info:
        return next((int(line.split()[1]) * 1024 for line in info if line.startswith("MemAvailable:")), 0)


class Watch:
    """Call it now and then; `figures()` are the peaks above what was in use at first."""

    def __init__(self, nvml=True):
        self.library = None
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1") if nvml else None
            self.handle = ctypes.c_void_p()
            if library and library.nvmlInit_v2() == 0 and library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.handle)) == 0:
                self.library = library
        except (OSError, AttributeError):
            pass
        self.device_before = self.device_peak = self.device_used()
        self.host_before = self.host_least = available_bytes()

    def device_used(self):
        memory = Memory()
        if self.library and self.library.nvmlDeviceGetMemoryInfo(self.handle, ctypes.byref(memory)) == 0:
            return memory.used
        return 0

    def __call__(self):
        self.device_peak = max(self.device_peak, self.device_used())
        self.host_least = min(self.host_least, available_bytes())

    def figures(self):
        return {"device_peak_bytes": self.device_peak - self.device_before if self.library else None,
                "host_peak_bytes": self.host_before - self.host_least}
