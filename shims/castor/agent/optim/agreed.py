"""What the ranks compare when they begin a step."""
import ctypes

import torch

from .. import core


def values(optimizer, pairs):
    """(label, number) of what must be the same on every rank: the numeric hyperparameters, and the number of parameters."""
    agreed = [("the number of parameters", float(len(pairs)))]
    for number, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            for v in () if key == "params" else value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(v, (int, float)) or isinstance(v, torch.Tensor) and v.numel() == 1:
                    agreed.append((f"{key} of parameter group {number}", float(v)))
    return agreed


def checksum(gradients):
    """A checksum of the gradients as this rank sees them."""

    def digest(grad):
        dense = grad.detach().contiguous().cpu()
        return core.digest(dense.data_ptr(), dense.nbytes)

    digests = [0 if grad is None else digest(grad) for grad in gradients]
    return float(core.digest((ctypes.c_uint64 * len(digests))(*digests), 8 * len(digests)) >> 11)  # exact as a double
