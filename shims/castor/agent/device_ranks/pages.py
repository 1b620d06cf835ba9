"""Homes of parameters, and the pages of the host that ranks share (interpose/device/homes.h), by tensors."""
import ctypes
import os

import torch

from .. import core
from ..common import tensors


def numbers(values):
    return (ctypes.c_uint64 * len(values))(*values)


def addresses(some):
    return numbers([p.data_ptr() for p in some])


def homes_of(some):
    """(where its home begins, its bytes) each; (0, 0): it has none."""
    starts, sizes = (ctypes.c_uint64 * len(some))(), (ctypes.c_uint64 * len(some))()
    core.homes_find(addresses(some), len(some), starts, sizes)
    return list(zip(starts, sizes))


def beside(some):
    """Where the shared pages of its home have the same byte as the tensor's first; 0: its home has none."""
    found = (ctypes.c_uint64 * len(some))()
    core.homes_beside(addresses(some), len(some), found)
    return list(found)


def are_joined(some):
    found = (ctypes.c_int8 * len(some))()
    core.homes_joined(addresses(some), len(some), found)
    return [joined == 1 for joined in found]


def over(address, like):
    """A tensor over the memory there that is shaped like `like`."""
    size = like.numel() * like.element_size()
    storage = torch._C._construct_storage_from_data_pointer(address, like.device, size)
    return torch.empty(0, dtype=like.dtype, device=like.device).set_(storage, 0, like.shape, like.stride())


def readable(some):
    """The same values, for kernels: where one gets the address of shared pages that can only be read, the rank gets pages of its own."""
    return [over(address, p) if joined else p.detach() for p, address, joined in zip(some, beside(some), are_joined(some))]


@torch.no_grad()
def differ(some):
    """For each parameter, whether the shared pages of its home have other values."""
    return [not joined and tensors.differ(over(address, p), p.detach()) for p, address, joined in zip(some, beside(some), are_joined(some))]


def is_whole(p):
    return p.storage_offset() == 0 and p.untyped_storage().nbytes() == p.numel() * p.element_size()


def tried(call, *arguments):
    """Why it fails; None: it does not."""
    try:
        call(*arguments)
    except core.Error as error:
        return str(error)
    return None


def descriptors(count):
    return (ctypes.c_int32 * count)(*[-1] * count)


def close(some):
    for descriptor in some:
        if descriptor >= 0:
            os.close(descriptor)
