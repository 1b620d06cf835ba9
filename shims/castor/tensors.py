"""Tensors over addresses, and what of a tensor can be shared."""
import ctypes
import sys
import weakref

import torch

DTYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}
DTYPE_OF = {number: dtype for dtype, number in DTYPES.items()}


def while_python_runs(callback, ends=sys.is_finalizing):
    """`callback`, for what is called when an object dies: not any more once Python ends, since modules are empty by then."""

    def run(*_):
        if not ends():
            callback()

    return run


def tensor_at(address, like, on_free=None):
    """A tensor over `like.numel()` elements at `address`, with the shape and strides of `like`, which is dense.
    `on_free` is called when its storage is."""
    numel = like.numel()
    if not numel:
        return torch.empty_like(like)
    memory = (ctypes.c_char * (numel * like.element_size())).from_address(address)
    if on_free is not None:
        weakref.finalize(memory, while_python_runs(on_free)).atexit = False
    return torch.frombuffer(memory, dtype=like.dtype, count=numel).as_strided(like.shape, like.stride())


def is_dense(t):
    """Every element of the storage range [first, first + numel) belongs to the tensor exactly once."""
    expected = 1
    for stride, size in sorted(zip(t.stride(), t.shape)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def why_unsupported(p):
    """Why the gradients of a parameter cannot be summed in the store; None when they can."""
    if p.device.type != "cpu":
        return f"it is on {p.device}"
    if p.layout is not torch.strided:
        return f"its layout is {p.layout}"
    if p.dtype not in DTYPES:
        return f"its dtype is {p.dtype}"
    if isinstance(p, torch.nn.parameter.UninitializedTensorMixin):
        return "it is not initialized yet"
    if not is_dense(p):
        return "its elements are not dense in memory"
    return None


def owns_whole_storage(p):
    """The storage holds exactly the parameter's elements, and the tensor is a plain one."""
    if type(p) not in (torch.nn.Parameter, torch.Tensor):
        return False
    return p.storage_offset() == 0 and p.untyped_storage().nbytes() == p.numel() * p.element_size()


def storage_users(p):
    """Number of tensors (and others) that hold the parameter's storage, the parameter included."""
    storage = p.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata) - 1
