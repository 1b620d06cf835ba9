"""Parts of training loops (Colossal-AI: colossalai.utils)."""
from .common import (
    clip_grad_norm_fp32, conditional_context, disposable, empty_cache, ensure_path_exists, free_storage, get_current_device,
    get_non_persistent_buffers_set, is_ddp_ignored, is_using_pp, print_rank_0, set_device, set_seed, synchronize,
)
from .timer import MultiTimer, Timer

__all__ = [
    "MultiTimer", "Timer", "clip_grad_norm_fp32", "conditional_context", "disposable", "empty_cache", "ensure_path_exists",
    "free_storage", "get_current_device", "get_non_persistent_buffers_set", "is_ddp_ignored", "is_using_pp", "print_rank_0", "set_device", "set_seed",
    "synchronize",
]
