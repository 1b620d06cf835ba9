"""Which device each rank has, and which ranks share one. Of a single-process script (`--nproc`) each sees one alone, so that `cuda` and `cuda:0` of the script
are a device of its own on every rank."""
import os
import zlib

import torch

from .. import core

VISIBLE = "CUDA_VISIBLE_DEVICES"


def _visible():
    """The names of the devices that the process would see. CUDA is not initialized: what it has seen stays."""
    named = os.environ.get(VISIBLE)
    if named is None:
        by_driver = getattr(torch.cuda, "_device_count_nvml", lambda: 0)  # torch.cuda.device_count() may initialize CUDA
        return [str(number) for number in range(max(by_driver(), 0))]
    names = [name.strip() for name in named.split(",")]
    end = next((number for number, name in enumerate(names) if name in ("", "-1")), len(names))  # CUDA reads no further
    return names[:end]


def choose(rank, world):
    """Ranks share devices if there are more of them."""
    names = _visible()
    if names:
        os.environ[VISIBLE] = names[rank % len(names)]
        core.device_share(0, len(range(rank % len(names), world, len(names))))


def share(control, device):
    """Ranks that have one device have equal parts of its budget. Returns how many devices the ranks have. `device`: the number of this rank's. The
    ranks of `control` call it together."""
    of_this = zlib.crc32(str(torch.cuda.get_device_properties(device).uuid).encode())
    every = [(node, of_rank) for node, (of_rank,) in zip(control.nodes, control.gather([float(of_this)], "the ranks' devices"))]
    core.device_share(device, every.count(every[control.rank]))
    return len(set(every))
