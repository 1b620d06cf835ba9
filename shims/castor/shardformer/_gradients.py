"""Gradients of a hybrid-parallel model: sums over stages of what all stages have, means over replicas."""
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

__all__ = ["block", "mean_over_replicas", "sum_over_stages"]


def block(tensor):
    """The memory of this rank's part of a DTensor; other tensors as they are."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _buckets(parameters, limit):
    """Lists of parameters of one type and device, of at most `limit` bytes together or of one parameter."""
    open_ones = {}
    for p in parameters:
        key, size = (p.dtype, p.device), block(p).numel() * p.element_size()
        if key in open_ones and open_ones[key][1] + size > limit:
            yield open_ones.pop(key)[0]
        of, filled = open_ones.get(key, ([], 0))
        open_ones[key] = [*of, p], filled + size
    yield from (of for of, _ in open_ones.values())


def _reduced(parameters, group, dtype, scale):
    """The sums of gradients over a group, times `scale`, one for each parameter, None where no rank has one. Ranks may have used different parameters."""
    first = block(parameters[0])
    wide = dtype or parameters[0].dtype
    gradients = [None if p.grad is None else block(p.grad) for p in parameters]
    gradients = [g.to_dense() if g is not None and g.layout is not torch.strided else g for g in gradients]
    used = torch.tensor([float(g is not None) for g in gradients], device=first.device, dtype=wide)
    bucket = torch.cat([*(torch.zeros(block(p).numel(), device=first.device, dtype=wide) if g is None else g.reshape(-1).to(wide)
                          for p, g in zip(parameters, gradients)), used])
    if scale != 1:
        bucket[: -len(used)].mul_(scale)  # before the sum, which 16 bits may not hold
    dist.all_reduce(bucket, group=group)
    users = bucket[-len(used):].tolist()
    sums = bucket[: -len(used)].split([block(p).numel() for p in parameters])
    return [total.view(block(p).shape).to(p.dtype) if of else None for p, total, of in zip(parameters, sums, users)]


def _set(p, value):
    if isinstance(p, DTensor):
        value = DTensor.from_local(value.contiguous(), p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())
    if p.grad is None:
        p.grad = value.clone()
    else:
        block(p.grad).copy_(block(value))


@torch.no_grad()
def mean_over_replicas(parameters, group, limit, dtype=None):
    """Each gradient becomes the mean of the ranks of `group`; one that no rank has stays None. `limit`: bytes sent at once."""
    ranks = dist.get_world_size(group)
    for of in _buckets(parameters, limit):
        for p, mean in zip(of, _reduced(of, group, dtype, 1 / ranks)):
            if mean is not None:
                _set(p, mean)


@torch.no_grad()
def sum_over_stages(parameters, group, limit):
    """Adds up the gradients of parameters that all stages have."""
    for of in _buckets(parameters, limit):
        for p, total in zip(of, _reduced(of, group, None, 1)):
            if total is not None:
                _set(p, total)
