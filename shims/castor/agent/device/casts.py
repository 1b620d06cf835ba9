"""Casts of parameters on the host read copies on the device, as products do.

Under autocast a float weight is read by a cast, once in each pass. What casts it only reads it, by what its operator is: so it is given the
copy's address, and nothing else changes. Installed once memory is short."""
from ctypes import byref

import torch

from .. import core
from ..common import store, tensors
from . import adoption

_library = None


def _install():
    global _library
    stock = torch.library.get_kernel("aten::_to_copy", "CUDA")

    def cast(keyset, t, **kwargs):
        use = _use_of(t, kwargs.get("dtype"))
        if use is None:
            return stock.call_boxed(keyset, t, **kwargs)
        size = tensors.extent(t)
        storage = torch._C._construct_storage_from_data_pointer(use.pointer, t.device, size)
        try:
            return stock.call_boxed(keyset, torch.empty(0, dtype=t.dtype, device=t.device).set_(storage, 0, t.size(), t.stride()), **kwargs)
        finally:
            core.operand_end(t.device.index, byref(use))

    _library = torch.library.Library("aten", "IMPL")
    _library.impl("_to_copy", cast, "CUDA", with_keyset=True)


def _use_of(t, dtype):
    """The copy, of a dense tensor with another type; None: it is read where it is."""
    if dtype is None or dtype is t.dtype or type(t) not in (torch.Tensor, torch.nn.Parameter) or not t.is_cuda or t.is_conj() or t.is_neg() or not store.active():
        return None
    use = core.Operand()
    size = tensors.extent(t)
    found = size and core.operand_begin(t.device.index, t.data_ptr(), size, torch.cuda.current_stream(t.device).cuda_stream, byref(use))
    return use if found else None


def install():
    adoption.when_pressed.append(_install)
