"""What scripts for Colossal-AI take from colossalai.utils."""
import contextlib
import functools
import importlib.util
import os
import random

import torch
import torch.distributed as dist

from ..accelerator import get_accelerator
from . import optimizer_wrapper


def get_current_device():
    """The device that this process computes on."""
    return get_accelerator().get_current_device()


def set_device(index=None):
    """Makes the GPU `index` the current one; without GPUs nothing."""
    get_accelerator().set_device(index)


def synchronize():
    """Waits until the device has done what it was given."""
    get_accelerator().synchronize()


def empty_cache():
    """Gives device memory that PyTorch holds and does not use back."""
    get_accelerator().empty_cache()


def set_seed(seed):
    """Seeds the generators of Python, NumPy (if it is installed) and PyTorch, on all devices."""
    random.seed(seed)
    if importlib.util.find_spec("numpy") is not None:
        import numpy

        numpy.random.seed(seed)
    torch.manual_seed(seed)


def print_rank_0(msg, logger=None):
    """Prints on rank 0 alone, or says it through `logger` (DistributedLogger)."""
    if dist.is_available() and dist.is_initialized() and dist.get_rank():
        return
    if logger is None:
        print(msg, flush=True)
    else:
        logger.info(msg)


def ensure_path_exists(filename):
    """Makes the folder of a file."""
    os.makedirs(os.path.dirname(filename) or ".", exist_ok=True)


def conditional_context(context_manager, enable=True):
    """The context manager, or one that does nothing."""
    return context_manager if enable else contextlib.nullcontext()


def disposable(func):
    """A function that runs once: later calls return None."""
    ran = False

    @functools.wraps(func)
    def wrapper(*args, **kwargs):
        nonlocal ran
        if ran:
            return None
        ran = True
        return func(*args, **kwargs)

    return wrapper


def is_ddp_ignored(p):
    """Whether the script has set `_ddp_to_ignore` on a parameter."""
    return getattr(p, "_ddp_to_ignore", False)


def free_storage(data):
    """Frees the memory of a tensor, which keeps its shape. ValueError: it is a part of another one's memory."""
    storage = data.untyped_storage()
    if storage.size() == 0:
        return
    if data.storage_offset() != 0:
        raise ValueError("castor: free_storage() of a part of a tensor: others still use its memory")
    storage.resize_(0)


def get_non_persistent_buffers_set(module, memo=None, prefix="", remove_duplicate=True):
    """The names of the buffers, of a module and those in it, that its state_dict() leaves out."""
    named = module.named_modules(memo, prefix, remove_duplicate)
    return {f"{name}.{key}" if name else key for name, of in named for key in of._non_persistent_buffers_set}


def is_using_pp():
    """Whether castor.launch(config=dict(parallel=...)) has divided the job into several pipeline stages."""
    from ..engine import _parallel_groups

    return _parallel_groups.groups() is not None and _parallel_groups.groups().stages > 1


@torch.no_grad()
def clip_grad_norm_fp32(parameters, max_norm, norm_type=2):
    """Clips the gradients of float parameters in place to a total norm of `max_norm`, as torch.nn.utils.clip_grad_norm_ does. Every rank calls it.

    The norm counts each parameter once: tensor-parallel blocks (ColoTensor, DTensor) and the stages of a pipeline are added up; a parameter
    that stages share counts on the first of them. Returns the norm before clipping, a number."""
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    wrong = next((p.grad.dtype for p in parameters if p.grad is not None and p.grad.dtype is not torch.float32), None)
    if wrong is not None:
        raise TypeError(f"castor: clip_grad_norm_fp32 of a gradient of {wrong}: expected torch.float32; torch.nn.utils.clip_grad_norm_ takes others")
    return float(optimizer_wrapper.clip_by_norm(parameters, max_norm, norm_type))
