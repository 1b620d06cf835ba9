"""Memory whose address other code was given: it never moves.

By DLPack, by __cuda_array_interface__, to another process, or as a number: a `data_ptr()` that code outside of PyTorch and Castor asks for.
What an extension of C++ takes is not seen."""
import functools
import sys

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .. import patching

_address_of = torch._C.StorageBase.data_ptr  # behind what is replaced
_wrappers = set()  # codes of the functions below that are asked
_given = {}  # address: its storage, while that lives
# Packages whose code asks for addresses to compare them, and keeps none: which parameters are tied, which storages a file holds.
_COMPARE = "torch", "castor", "transformers", "accelerate", "safetensors", "peft", "diffusers", "lightning", "pytorch_lightning"


def _give(of):
    """Other code has the address of this tensor's storage, or of this storage, from here on."""
    if of.device.type != "cuda":
        return
    storage = of if isinstance(of, torch.UntypedStorage) else of.untyped_storage()
    address = _address_of(storage)
    known = _given.get(address)
    if address and (known is None or known.expired()):
        _given[address] = StorageWeakRef(storage)


def was_given(storage):
    known = _given.get(_address_of(storage))
    return known is not None and not known.expired()


def _keeps_it(caller):
    """Whether the code that asks may keep the address. A mode of the script (TorchFunctionMode) passes on what others ask. Without this look
    at callers' frames cases of tests/device fail: gpt where every address counts as kept, given_as_a_number where none does."""
    if caller.f_globals.get("__name__", "").partition(".")[0] in _COMPARE:
        return False
    while caller and caller.f_code not in _wrappers:
        caller = caller.f_back
    return caller is None


def _exported(stock):
    @functools.wraps(stock)
    def export(of, *args, **kwargs):
        _give(of)
        return stock(of, *args, **kwargs)

    return export


def _asked(stock):
    @functools.wraps(stock)
    def data_ptr(self):
        if self.is_cuda and _keeps_it(sys._getframe(1)):
            _give(self)
        return stock(self)

    _wrappers.add(data_ptr.__code__)

    return data_ptr


def install():
    patching.replace("torch.Tensor.__dlpack__", _exported)
    patching.replace("torch.utils.dlpack.to_dlpack", _exported)
    patching.replace("torch.Tensor.__cuda_array_interface__", lambda stock: property(_exported(stock.fget)))
    patching.replace("torch.UntypedStorage._share_cuda_", _exported)
    patching.replace("torch.Tensor.data_ptr", _asked)
    patching.replace("torch.UntypedStorage.data_ptr", _asked)
