"""`castor rehearse`: says what is on the devices when memory runs out and when the script ends, where no optimizer's step has said it."""
import atexit
import ctypes
import gc

import torch

from . import core
from .optim import figures


def install():
    if not (torch.version.cuda or "").startswith("13."):
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU"
        core.log(0, f"the simulated devices are those of CUDA 13, and torch {torch.__version__} is built for {built}".encode())
        return
    atexit.register(_end)
    torch.cuda._lazy_call(lambda: torch._C._cuda_attach_out_of_memory_observer(lambda *sizes: _tell()))


def _end():
    _tell()
    most_used = ctypes.CDLL(None).sim_memory_peak  # of the simulation
    most_used.restype = ctypes.c_size_t
    for device in range(core.options.rehearse_devices):
        core.event_device_used(device, most_used(device))


def _tell():
    """Parameters that no optimizer has, or not yet: all that there are. The type of an object says no more than its class; isinstance would
    ask the object."""
    if not core.event_device_peak():
        return
    found = gc.get_objects()
    figures.tell_model_data([one for one in found if issubclass(type(one), torch.optim.Optimizer)],
                            [one for one in found if issubclass(type(one), torch.nn.Parameter)])
