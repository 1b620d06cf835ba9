"""Helpers of training loops (Colossal-AI: coati.trainer.utils)."""
import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map

from ..agent import core

core.require()

__all__ = [
    "AnnealingScheduler", "CycledDataLoader", "all_gather_tensors", "all_reduce_mean", "all_reduce_sum", "is_rank_0", "to_device",
]


class AnnealingScheduler:
    """A temperature that stays at `start` and then falls (or rises) linearly to `end`.

    Args:
        start, end: the first and the last temperature.
        warmup_steps: up to and including this step the temperature is `start`; this test comes first.
        annealing_step: from this step on it is `end`.

    Between the two it is start - step / annealing_step * (start - end). The warm-up is not subtracted, so the temperature
    jumps after it. Only step_forward() advances."""

    def __init__(self, start, end, warmup_steps=100, annealing_step=2000):
        self.start, self.end = start, end
        self.warmup_steps, self.annealing_step = warmup_steps, annealing_step
        self.step = 0

    def get_temperature(self):
        """The temperature at the current step, a float."""
        return core.annealing(self.start, self.end, self.warmup_steps, self.annealing_step, self.step)

    def step_forward(self):
        self.step += 1


class CycledDataLoader:
    """Endless batches of a DataLoader, or of anything that can be iterated repeatedly.

    Nothing is drawn before the first next(). `count`: items since the loader was started, 0 before the first. A restart sets
    it to 0; the item that the restart gives is not counted."""

    def __init__(self, dataloader):
        self.dataloader = dataloader
        self.count = 0
        self._iterator = None

    def next(self):
        """The next batch; at its end the loader is iterated anew. StopIteration: the loader is empty."""
        if self._iterator is None:
            self._iterator = iter(self.dataloader)
        try:
            item = next(self._iterator)
        except StopIteration:
            self.count = 0
            self._iterator = iter(self.dataloader)
            return next(self._iterator)
        self.count += 1
        return item


def is_rank_0():
    """True on rank 0 of torch.distributed, and if that is not initialized."""
    return not _initialized() or dist.get_rank() == 0


def to_device(x, device):
    """`x` with each of its tensors on `device`. `x`: any nesting of lists, tuples, dicts and other pytree nodes; leaves that are
    no tensors stay unchanged."""
    return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, x)


def all_reduce_sum(tensor, plugin=None):
    """The sum of `tensor` (any shape, the same on every rank) over the ranks, in place; returns `tensor`.

    The ranks are those of the plugin's data-parallel group (`plugin.dp_group`), else all. The tensor is unchanged if
    torch.distributed is not initialized. Call it on every rank of the group."""
    if _initialized():
        data = tensor.detach()
        whole = data.contiguous()  # backends reduce contiguous memory only
        dist.all_reduce(whole, op=dist.ReduceOp.SUM, group=_group_of(plugin))
        if whole.data_ptr() != data.data_ptr():
            data.copy_(whole)
    return tensor


def all_reduce_mean(tensor, plugin=None):
    """As all_reduce_sum, divided by the number of the group's ranks. TypeError: `tensor` holds integers, which have no mean in
    place."""
    if not _initialized():
        return tensor
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise TypeError(f"castor: all_reduce_mean of a tensor of {tensor.dtype}: expected a floating-point tensor. Convert it, "
                        "or use all_reduce_sum")
    group = _group_of(plugin)
    all_reduce_sum(tensor, plugin)
    ranks = dist.get_world_size(group)
    if ranks > 0:  # a rank outside the group has nothing to divide
        tensor.detach().div_(ranks)
    return tensor


def all_gather_tensors(local_tensor_list, plugin=None):
    """The tensors of all ranks in one list, in rank order. Ranks may hold different numbers of them, of different shapes and
    dtypes.

    They are copies without a graph. Each is on this rank's device of the type (CPU, CUDA) that its own rank held it on. The
    ranks are those of all_reduce_sum; call it on every rank of the group. If torch.distributed is not initialized, the list
    holds this rank's own tensors."""
    tensors = list(local_tensor_list)
    if not _initialized():
        return tensors
    group = _group_of(plugin)
    # A view's pickle would hold its whole storage: a clone holds what it shows.
    mine = [(t.device.type, t.detach().cpu().clone()) for t in tensors]
    every = [None] * dist.get_world_size(group)
    dist.all_gather_object(every, mine, group=group)
    return [t.to(kind) for theirs in every for kind, t in theirs]


def _initialized():
    return dist.is_available() and dist.is_initialized()


def _group_of(plugin):
    """The plugin's data-parallel group; None, which is the world, without one."""
    return getattr(plugin, "dp_group", None)
