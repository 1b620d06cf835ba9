"""Moves a tensor's blocks between the ranks of a tensor-parallel group (Colossal-AI: colossalai.tensor.dist_spec_mgr).

Every rank computes the same loss, so the gradient of a replicated tensor is whole and equal on all ranks. Hence the gradient of
a gather is a division, that of a division a gather, and that of an exchange the exchange back."""
import contextlib

import torch
import torch.distributed as dist

from .distspec import DistPlacementPattern

__all__ = ["DistSpecManager"]


def check(spec, shape, pg):
    """ValueError: a tensor of this global shape cannot lie so on the group."""
    if spec.placement is DistPlacementPattern.REPLICATE or pg.tp_world_size() == 1:
        return
    if spec.partitions() != pg.tp_world_size():
        raise ValueError(f"castor: {spec} makes {spec.partitions()} parts for a tensor-parallel group of {pg.tp_world_size()} ranks")
    for dim, parts in zip(spec.positive_dims(len(shape)), spec.num_partitions):
        if shape[dim] % parts:
            raise ValueError(f"castor: dimension {dim} of a tensor of shape {tuple(shape)} does not divide into {parts} equal parts")


def is_whole(spec, pg):
    """Every rank has all of a tensor that lies so."""
    return spec.placement is DistPlacementPattern.REPLICATE or pg.tp_world_size() == 1


def _block(tensor, spec, index):
    """Block `index` of a whole tensor, in row-major order."""
    for dim, parts in reversed(list(zip(spec.positive_dims(tensor.dim()), spec.num_partitions))):
        index, part = divmod(index, parts)
        tensor = tensor.narrow(dim, part * (tensor.size(dim) // parts), tensor.size(dim) // parts)
    return tensor


def transform(tensor, old, new, pg):
    """The blocks under `new` of the tensor whose blocks under `old` are given; no autograd. The tensor itself if nothing moves."""
    if is_whole(old, pg):
        return tensor if is_whole(new, pg) else DistSpecManager._shard_as(tensor, old, new, pg)
    if is_whole(new, pg):
        return DistSpecManager._gather(tensor, old, pg)
    if (old.positive_dims(tensor.dim()), old.num_partitions) == (new.positive_dims(tensor.dim()), new.num_partitions):
        return tensor
    if len(old.dims) == len(new.dims) == 1:
        return DistSpecManager._all_to_all(tensor, old, new, pg)
    return DistSpecManager._shard_as(DistSpecManager._gather(tensor, old, pg), old, new, pg)


class _Transform(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, old, new, pg):
        ctx.specs = old, new, pg
        moved = transform(tensor, old, new, pg)
        return moved.view_as(moved) if moved is tensor else moved

    @staticmethod
    def backward(ctx, gradient):
        old, new, pg = ctx.specs
        return transform(gradient, new, old, pg), None, None, None


class _AllReduceBackward(torch.autograd.Function):
    """The tensor itself; the gradient is summed over the group."""

    @staticmethod
    def forward(ctx, tensor, pg):
        ctx.pg = pg
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient, group=ctx.pg.tp_process_group())
        return gradient, None


class _AllReduceForward(torch.autograd.Function):
    """The sum over the group; its gradient is every addend's."""

    @staticmethod
    def forward(ctx, tensor, pg):
        total = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=pg.tp_process_group())
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def reduce_grad(tensor, pg):
    return tensor if pg.tp_world_size() == 1 else _AllReduceBackward.apply(tensor, pg)


def reduce_input(tensor, pg):
    return tensor if pg.tp_world_size() == 1 else _AllReduceForward.apply(tensor, pg)


class DistSpecManager:
    """Static methods only."""

    _use_autograd_function = True

    @staticmethod
    def handle_trans_spec(tensor, old_dist_spec, new_dist_spec, pg):
        """The local blocks (torch.Tensor) under new_dist_spec of the tensor whose local blocks under old_dist_spec are given.
        Every rank of the group's tensor-parallel group calls it. Differentiable outside of no_grad(). ValueError: the tensor
        does not divide so."""
        if not DistSpecManager._use_autograd_function:
            with torch.no_grad():
                return transform(tensor, old_dist_spec, new_dist_spec, pg)
        return _Transform.apply(tensor, old_dist_spec, new_dist_spec, pg)

    @staticmethod
    @contextlib.contextmanager
    def no_grad():
        """Inside, transformations are not differentiated."""
        before, DistSpecManager._use_autograd_function = DistSpecManager._use_autograd_function, False
        try:
            yield
        finally:
            DistSpecManager._use_autograd_function = before



    @staticmethod
    def _shard_as(tensor, old_dist_spec, dist_spec, pg):
        """This rank's block of a whole tensor."""
        check(dist_spec, tensor.shape, pg)
        return _block(tensor, dist_spec, pg.tp_local_rank()).contiguous()

    @staticmethod
    def _gather(tensor, old_dist_spec, pg):
        """The whole tensor."""
        blocks = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(pg.tp_world_size())]
        dist.all_gather(blocks, tensor.contiguous(), group=pg.tp_process_group())
        for dim, parts in reversed(list(zip(old_dist_spec.positive_dims(tensor.dim()), old_dist_spec.num_partitions))):
            blocks = [torch.cat(blocks[i:i + parts], dim) for i in range(0, len(blocks), parts)]
        return blocks[0]

    @staticmethod
    def _all_to_all(tensor, old_dist_spec, dist_spec, pg):
        """From one divided dimension to another one."""
        (old,), (new,) = old_dist_spec.positive_dims(tensor.dim()), dist_spec.positive_dims(tensor.dim())
        shape, ranks = list(tensor.shape), pg.tp_world_size()
        shape[old] *= ranks
        check(dist_spec, shape, pg)
        outgoing = torch.stack([part.contiguous() for part in tensor.chunk(ranks, new)])
        incoming = torch.empty_like(outgoing)
        dist.all_to_all_single(incoming, outgoing, group=pg.tp_process_group())
        return torch.cat(incoming.unbind(0), old)
