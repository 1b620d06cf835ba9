"""Which device each rank of a single-process script has (`--nproc`): the only one that it sees, so that `cuda` and `cuda:0` of the script are a device of
its own on every rank."""
import os

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
        core.device_share(len(range(rank % len(names), world, len(names))))
