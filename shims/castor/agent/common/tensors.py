"""Tensors over addresses, and which tensors can be shared."""
import ctypes
import functools
import hashlib
import sys
import weakref

import torch

from .. import core

DTYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}
DTYPE_OF = {number: dtype for dtype, number in DTYPES.items()}


def while_python_runs(callback, ends=sys.is_finalizing):
    """`callback`, to be called when an object dies. It is not called any more once Python ends: modules are empty by then."""

    def run(*_):
        if not ends():
            callback()

    return run


def tensor_at(address, like, on_free=None):
    """A tensor over `like.numel()` elements at `address`, with the shape and strides of `like`, which is dense.
    `on_free` is called when its storage is freed."""
    numel = like.numel()
    if not numel:
        return torch.empty_like(like)
    memory = _ours[address] = (ctypes.c_char * (numel * like.element_size())).from_address(address)
    if on_free is not None:
        weakref.finalize(memory, while_python_runs(on_free)).atexit = False
    return torch.frombuffer(memory, dtype=like.dtype, count=numel).as_strided(like.shape, like.stride())


_ours = weakref.WeakValueDictionary()  # by address, the memory of tensor_at's tensors


def holds_numbers(t):
    """Whether what its device has computed says something: in a rehearsal without numbers it computes nothing, or products alone."""
    return core.options.rehearse_numbers or not t.is_cuda


def differ(a, b):
    """Whether elements of two tensors of one shape differ (NaNs do). This one and the next ask for what is not the rule, and so do rehearsals without numbers."""
    return holds_numbers(a) and bool((a != b).any())


def not_finite(t):
    """Whether it has elements that are not finite, as a flag on its device."""
    return torch.isfinite(t).logical_not().any()


def is_castors(hook):
    """Whether a hook of a tensor or a module is Castor's own."""
    return (getattr(hook, "__module__", None) or "").startswith(__name__.partition(".")[0] + ".")


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


def lacks_data(p):
    """A parameter of a lazy module before its first forward, or one on the meta device: what it will be is known later."""
    return p.is_meta or isinstance(p, torch.nn.parameter.UninitializedTensorMixin)


def why_unsupported(p, device="cpu"):
    """Why the gradients of a parameter cannot be summed in the store; None when they can. `device`: the type where it must be."""
    if p.device.type != device:
        return f"it is on {p.device}"
    if p.layout is not torch.strided:
        return f"its layout is {p.layout}"
    if p.dtype not in DTYPES:
        return f"its dtype is {p.dtype}"
    if not p.is_leaf:
        return "it is computed from other tensors"
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


def is_reached(t):
    """Something else can reach the tensor's memory: another tensor, another process, or its maker, if that is not PyTorch's own
    allocator (a NumPy array, a mapped file). A storage of the last kind cannot be resized. Neither can one of torch.load, but
    its memory is the allocator's."""
    storage = t.untyped_storage()
    made_elsewhere = not storage.resizable() and storage.data_ptr() not in _ours and not core.arena_block(storage.data_ptr())
    return storage_users(t) > 1 or made_elsewhere or t.is_shared()


def is_at(t, address, like):
    """The tensor lies at the address, with the dtype, shape and strides of `like`."""
    return t.data_ptr() == address and t.dtype is like.dtype and t.shape == like.shape and t.stride() == like.stride()


@functools.lru_cache(maxsize=1 << 16)
def _layout(*described):
    return int.from_bytes(hashlib.blake2b(repr(described).encode(), digest_size=8).digest(), "little")


def layout(t):
    """One number for dtype, shape and strides, the same on every rank."""
    return _layout(t.dtype, t.shape, t.stride())


def extent(t):
    """Bytes from the first element to the end of the last."""
    last = sum(stride * (size - 1) for stride, size in zip(t.stride(), t.shape)) if t.numel() else -1
    return (last + 1) * t.element_size()


def digest(value, digest_bytes):
    """A number for a value that an optimizer keeps, equal on ranks with equal values. `digest_bytes`: of (address, bytes)."""
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type == "cpu":
        dense = value.detach().contiguous()
        return _layout(layout(value), digest_bytes(dense.data_ptr(), dense.nbytes))
    return _layout(repr(value))
