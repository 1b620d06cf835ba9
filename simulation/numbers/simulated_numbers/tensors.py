"""CPU tensors over the bytes of tensors on a simulated device."""
import ctypes

import torch


def _shaped_as(tensor, storage):
    view = torch.empty(0, dtype=tensor.dtype, device="cpu").set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    view = torch._conj(view) if tensor.is_conj() else view
    return torch._neg_view(view) if tensor.is_neg() else view


def over(tensor):
    """A CPU tensor over the same bytes, with the same sizes and strides. It must not outlive the tensor."""
    storage = tensor.untyped_storage()
    size, first = storage.nbytes(), torch._C.StorageBase.data_ptr(storage)
    if not size:
        return _shaped_as(tensor, torch.UntypedStorage(0))
    return _shaped_as(tensor, torch.frombuffer((ctypes.c_uint8 * size).from_address(first), dtype=torch.uint8).untyped_storage())


_driver = ctypes.CDLL(None)  # as the process finds its functions, hooks included
_scratch = ctypes.create_string_buffer(8)


def announce(tensors, device):
    """Enqueues a copy of no bytes of each, as the launch that is simulated by what follows would read them: whoever enqueues something before a call that
    touches a tensor does so before its numbers are read."""
    stream = torch.cuda.current_stream(device).cuda_stream
    with torch.cuda.device(device):
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if tensor.is_cuda and storage.nbytes():
                _driver.cudaMemcpyAsync(_scratch, ctypes.c_void_p(torch._C.StorageBase.data_ptr(storage)), ctypes.c_size_t(0), 2,
                                        ctypes.c_void_p(stream))


def copy_of(view):
    """A CPU tensor with memory of its own, and the same bytes, sizes and strides."""
    return _shaped_as(view, view.untyped_storage().clone())


def mapped(function, value):
    """`function` applied to each value in lists and tuples."""
    if isinstance(value, (list, tuple)):
        return type(value)([mapped(function, one) for one in value])
    return function(value)


def leaves(values):
    """The tensors among values and in their lists, in order."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from leaves(value)
