"""Distributed tensors in checkpoints: PyTorch's DTensor, and ColoTensor."""
import sys

import torch

from . import _ranks


def _dtensor():
    module = sys.modules.get("torch.distributed.tensor")
    return getattr(module, "DTensor", ())


def _colo():
    module = sys.modules.get("castor.tensor.colo_tensor")
    return getattr(module, "ColoTensor", ())


def is_distributed(t):
    return isinstance(t, _dtensor()) or isinstance(t, _colo())


def ranks_of(tensors):
    """All ranks that gather these tensors with this one."""
    found = set()
    for t in tensors:
        found.update(t.device_mesh.mesh.flatten().tolist() if isinstance(t, _dtensor()) else t.process_group.tp_rank_list() or [])
    return sorted(found)


@torch.no_grad()
def whole(t):
    """The whole tensor; a collective of its ranks."""
    if isinstance(t, _dtensor()):
        return t.full_tensor()
    if isinstance(t, _colo()):
        from ..tensor.colo_tensor import _local

        return _local(t.detach().to_replicate())
    return t


@torch.no_grad()
def block(t):
    """This rank's part."""
    if isinstance(t, _dtensor()):
        return t.to_local()
    if isinstance(t, _colo()):
        from ..tensor.colo_tensor import _local

        return _local(t.detach())
    return t


def whole_shape(t):
    return tuple(t.size_global()) if isinstance(t, _colo()) else tuple(t.shape)


def layout(t):
    """What must be equal for a rank's part to be read again. None: a plain tensor."""
    if isinstance(t, _dtensor()):
        return f"{tuple(t.shape)}, {list(map(str, t.placements))} on ranks {t.device_mesh.mesh.tolist()}"
    if isinstance(t, _colo()):
        return f"{whole_shape(t)}, {t.dist_spec} on ranks {t.process_group.tp_rank_list()}"
    return None


def from_block(like, value):
    """A rank's own part, as load_state_dict takes it for `like`."""
    if isinstance(like, _dtensor()):
        return _dtensor().from_local(value, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride())
    return value


def from_whole(like, value):
    """Of the whole tensor `value` what this rank has in `like`. Nothing is sent; where the parts are plain blocks it is a view."""
    if isinstance(like, _dtensor()):
        return from_block(like, _block_of(like, value))
    if isinstance(like, _colo()) and not like.is_replicate():
        from ..tensor.dist_spec_mgr import DistSpecManager
        from ..tensor.distspec import ReplicaSpec

        return DistSpecManager.handle_trans_spec(value, ReplicaSpec(), like.dist_spec, like.process_group)
    return value


def _block_of(like, value):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if any(type(p) not in (Replicate, Shard) for p in like.placements):
        return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None).to_local()
    shape, offset = compute_local_shape_and_global_offset(like.shape, like.device_mesh, like.placements)
    for dim, (size, begin) in enumerate(zip(shape, offset)):
        value = value.narrow(dim, begin if size else 0, size)
    return value.to(like.device)
