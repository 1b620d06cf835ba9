"""Moves a tensor's blocks between the ranks of a tensor-parallel group (Colossal-AI: colossalai.tensor.dist_spec_mgr)."""
import contextlib
import functools

import torch

from . import _blocks
from .distspec import DistPlacementPattern

__all__ = ["DistSpecManager"]


def check(spec, shape, pg):
    """ValueError: a tensor of this global shape cannot lie so on the group."""
    if is_whole(spec, pg):
        return
    if spec.partitions() != pg.tp_world_size():
        raise ValueError(f"castor: {spec} makes {spec.partitions()} parts for a tensor-parallel group of {pg.tp_world_size()} ranks")
    for dim, parts in spec.divisions(len(shape)):
        _blocks.check(shape, dim, parts)


def is_whole(spec, pg):
    """Every rank has all of a tensor that lies so."""
    return spec.placement is DistPlacementPattern.REPLICATE or pg.tp_world_size() == 1


def _line(pg):
    return _blocks.Line(pg.tp_process_group(), pg.tp_rank_list())


def transform(tensor, old, new, pg):
    """The blocks under `new` of the tensor whose blocks under `old` are given; no autograd. The tensor itself if nothing moves."""
    if is_whole(old, pg):
        return tensor if is_whole(new, pg) else DistSpecManager._shard_as(tensor, old, new, pg)
    if is_whole(new, pg):
        return DistSpecManager._gather(tensor, old, pg)
    if old.divisions(tensor.dim()) == new.divisions(tensor.dim()):
        return tensor
    if len(old.dims) == len(new.dims) == 1:
        return DistSpecManager._all_to_all(tensor, old, new, pg)
    return DistSpecManager._shard_as(DistSpecManager._gather(tensor, old, pg), old, new, pg)


def reduce_grad(tensor, pg):
    """The tensor itself; its gradient is summed over the group."""
    return tensor if pg.tp_world_size() == 1 else _blocks.Communication.apply(tensor, _blocks.same, _line(pg).sum)


def reduce_input(tensor, pg):
    """The sum over the group."""
    return tensor if pg.tp_world_size() == 1 else _blocks.Communication.apply(tensor, _line(pg).sum, _blocks.same)


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
        return _blocks.Communication.apply(tensor, functools.partial(transform, old=old_dist_spec, new=new_dist_spec, pg=pg),
                                           functools.partial(transform, old=new_dist_spec, new=old_dist_spec, pg=pg))

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
        return _blocks.block(tensor, dist_spec.divisions(tensor.dim()), pg.tp_local_rank())

    @staticmethod
    def _gather(tensor, old_dist_spec, pg):
        """The whole tensor."""
        return _line(pg).gather(tensor, old_dist_spec.divisions(tensor.dim()))

    @staticmethod
    def _all_to_all(tensor, old_dist_spec, dist_spec, pg):
        """From one divided dimension to another one."""
        (old, parts), = old_dist_spec.divisions(tensor.dim())
        (new, _), = dist_spec.divisions(tensor.dim())
        shape = list(tensor.shape)
        shape[old] *= parts
        check(dist_spec, shape, pg)
        return _line(pg).exchange(tensor, old, new)
