"""Helpers of scripts that write checkpoints themselves (Colossal-AI: colossalai.checkpoint_io.utils)."""
import torch
from torch.utils._pytree import tree_map

__all__ = ["calculate_tensor_size", "create_pinned_state_dict"]


def calculate_tensor_size(tensor):
    """The size of a tensor in MiB, a float."""
    return tensor.numel() * tensor.element_size() / (1 << 20)


def create_pinned_state_dict(state_dict, empty=True, num_threads=1):
    """Host tensors of the shapes and dtypes of those in `state_dict`, in the same nesting; other values as they are. They are pinned where there is a GPU.

    Args: empty: they have no values; False: those of the tensors. num_threads: accepted."""
    pinned = torch.cuda.is_available()

    def made(value):
        if not isinstance(value, torch.Tensor):
            return value
        host = torch.empty(value.shape, dtype=value.dtype, pin_memory=pinned)
        return host if empty else host.copy_(value.detach())

    return tree_map(made, state_dict)
