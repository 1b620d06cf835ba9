"""ColoTensors as PyTorch's DTensors over the same memory: DTensor knows how each of its operators divides."""
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils._pytree import tree_map_only, tree_unflatten

from .distspec import ReplicaSpec, ShardSpec
from .tensor_spec import ColoTensorSpec

_meshes = {}  # (a ProcessGroup, a type of device): the mesh of its tensor-parallel ranks


def _mesh(pg, device_type):
    key = pg, device_type
    if key not in _meshes:
        _meshes[key] = DeviceMesh.from_group(pg.tp_process_group(), device_type)
    return _meshes[key]


def _placement(tensor):
    """Of a ColoTensor that is divided at one dimension at most."""
    return Replicate() if tensor.is_replicate() else Shard(tensor.dist_spec.positive_dims(tensor.dim())[0])


def to_dtensor(local, tensor):
    """Of a ColoTensor and its block."""
    return DTensor.from_local(local, _mesh(tensor.process_group, local.device.type), [_placement(tensor)], run_check=False)


def from_dtensor(tensor, pg):
    """The block and the ColoTensorSpec of a ColoTensor over the memory of a DTensor."""
    if tensor.device_mesh.ndim != 1:
        raise ValueError(f"castor: a DTensor on a mesh of {tensor.device_mesh.ndim} dimensions is no ColoTensor")
    (placement,) = tensor.placements
    if placement.is_partial() or placement.is_shard() and tensor.shape[placement.dim] % pg.tp_world_size():
        tensor, placement = tensor.redistribute(placements=[Replicate()]), Replicate()
    spec = ShardSpec([placement.dim], [pg.tp_world_size()]) if placement.is_shard() else ReplicaSpec()
    return tensor.to_local(), ColoTensorSpec(pg, spec)


def call(kind, local, func, leaves, tree, first):
    """What `func` gives of operands, of which the ColoTensor `first`, a `kind`, is sharded; `local` gives the block of one. A plain tensor of its block's shape is a block, too;
    any other one is whole."""
    mesh = _mesh(first.process_group, first.device.type)

    def operand(leaf):
        if isinstance(leaf, kind):
            return DTensor.from_local(local(leaf), mesh, [_placement(leaf)], run_check=False)
        if isinstance(leaf, Tensor) and leaf.dim():
            return DTensor.from_local(leaf, mesh, [_placement(first) if leaf.shape == first.shape else Replicate()], run_check=False)
        return leaf

    args, kwargs = tree_unflatten([operand(leaf) for leaf in leaves], tree)
    return tree_map_only(DTensor, lambda result: kind.from_torch_tensor(*from_dtensor(result, first.process_group)), func(*args, **kwargs))
