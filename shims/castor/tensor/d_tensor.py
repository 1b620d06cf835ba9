"""Tensors that are each rank's part of a whole one, and know how it is divided (Colossal-AI: colossalai.tensor.d_tensor).

A distributed tensor is a plain one with an attribute `dist_layout`. Conversions are those of ShapeConsistencyManager, and differentiable. PyTorch's own
torch.distributed.tensor.DTensor, which HybridParallelPlugin uses, is another thing: its shape is the whole one's."""
import math
import types

import torch
import torch.distributed as dist

from ..device.device_mesh import DeviceMesh
from .comm_spec import CollectiveCommPattern, CommSpec
from .shape_consistency import ShapeConsistencyManager
from .sharding_spec import ShardingSpec as _Spec, _axes, _DimSpec
from .utils import merge_same_dim_mesh_list

__all__ = [
    "CollectiveCommPattern", "CommSpec", "Layout", "LayoutConverter", "ShardingSpec", "clear_layout_converter", "compute_global_numel", "distribute_tensor",
    "get_device_mesh", "get_global_shape", "get_layout", "get_shard_dim_1d", "get_sharding_spec", "init_as_dtensor", "is_distributed_tensor", "is_sharded",
    "redistribute", "shard_colwise", "shard_rowwise", "sharded_tensor_to_existing_param", "sharded_tensor_to_param", "to_global",
]


class ShardingSpec:
    """Which axes of a mesh divide which dimension, of any mesh and any shape.

    Args:
        dim_size: the number of dimensions.
        dim_partition_dict: {dimension: [axis, ...]}; negative dimensions count from the last one.
        sharding_sequence: instead of it, one of "R", "S01" or [axis, ...] for each dimension.

    ValueError: both or none are given, or they do not fit."""

    def __init__(self, dim_size, dim_partition_dict=None, sharding_sequence=None):
        if (dim_partition_dict is None) == (sharding_sequence is None):
            raise ValueError("castor: a ShardingSpec is made with a dim_partition_dict or with a sharding_sequence")
        self.dims = dim_size
        if sharding_sequence is not None:
            if len(sharding_sequence) != dim_size:
                raise ValueError(f"castor: a sharding_sequence of {len(sharding_sequence)} for a tensor of {dim_size} dimensions")
            dim_partition_dict = {dim: axes for dim, axes in enumerate(map(_axes, sharding_sequence)) if axes}
        self.dim_partition_dict = merge_same_dim_mesh_list(dim_size, dim_partition_dict)
        self.sharding_sequence = [_DimSpec(self.dim_partition_dict.get(dim, ())) for dim in range(dim_size)]

    def __eq__(self, other):
        return isinstance(other, ShardingSpec) and self.sharding_sequence == other.sharding_sequence

    def __hash__(self):
        return hash(tuple(self.sharding_sequence))

    def __repr__(self):
        return "DistSpec(" + ", ".join(map(str, self.sharding_sequence)) + ")"


class Layout:
    """How a tensor is divided: `device_mesh`, a castor.device.device_mesh.DeviceMesh; `sharding_spec`, a ShardingSpec; `global_shape`, the whole one's.
    ValueError: an axis is not in the mesh or divides twice, or a dimension does not divide."""

    def __init__(self, device_mesh, sharding_spec, global_shape):
        self.device_mesh, self.sharding_spec, self.global_shape = device_mesh, sharding_spec, torch.Size(global_shape)
        self._spec = _Spec(device_mesh, self.global_shape, sharding_spec.dim_partition_dict)

    def get_sharded_shape_per_device(self):
        """The shape of one rank's part, a torch.Size."""
        return self._spec.get_sharded_shape_per_device()

    def __deepcopy__(self, memo):
        return self

    def __eq__(self, other):
        return isinstance(other, Layout) and (self.device_mesh, self.sharding_spec, self.global_shape) == (other.device_mesh, other.sharding_spec, other.global_shape)

    def __hash__(self):
        return hash((self.sharding_spec, self.global_shape))


class LayoutConverter:
    """From one Layout to another one, in steps of one communication."""

    _manager, _forward = ShapeConsistencyManager(), ShapeConsistencyManager(forward_only=True)

    def __init__(self):
        self.forward_only = False
        self.cached_solution = {}  # {((sequence, shape of the part) of the source, the same of the target): the last conversion}

    def _which(self):
        return self._forward if self.forward_only else self._manager

    @staticmethod
    def _layout(spec):
        return Layout(spec.device_mesh, ShardingSpec(len(spec.entire_shape), spec.dim_partition_dict), spec.entire_shape)

    def _steps(self, layout, name):
        return {self._layout(spec): action for spec, (action, _) in getattr(self._which(), name)(layout._spec, {}).items()}

    def all_gather_transform_layouts(self, source_layout):
        """{Layout: CommSpec} of what one all-gather makes of a Layout."""
        return self._steps(source_layout, "get_all_all_gather_spec")

    def all_to_all_transform_layout(self, source_layout):
        return self._steps(source_layout, "get_all_all_to_all_spec")

    def shard_transform_layout(self, source_layout):
        return self._steps(source_layout, "get_all_shard_spec")

    def get_all_one_step_transform_spec(self, source_layout):
        """All three."""
        return self._steps(source_layout, "get_all_one_step_transform_spec")

    def layout_converting(self, source_layout, target_layout):
        """(the Layouts from the source to the target, both included; the CommSpecs between them)."""
        specs, actions, _ = self._which().shape_consistency(source_layout._spec, target_layout._spec)
        found = [self._layout(spec) for spec in specs], actions
        key = tuple((str(one.sharding_spec.sharding_sequence), one.get_sharded_shape_per_device()) for one in (source_layout, target_layout))
        self.cached_solution[key] = found
        return found

    def get_total_comm_cost(self, source_layout, target_layout):
        """{"forward", "backward", "total"}: the sum of the steps' costs (DeviceMesh)."""
        return self._which().shape_consistency(source_layout._spec, target_layout._spec)[2]

    def apply(self, tensor, source_layout, target_layout):
        """What `tensor`, this rank's part under the source, becomes under the target: with the attribute `dist_layout`. Differentiable."""
        converted = self._which().apply_for_autoparallel_runtime(tensor, source_layout._spec, target_layout._spec)
        return _with_layout(converted.view_as(converted) if converted is tensor else converted, target_layout)


_converter = LayoutConverter()


def clear_layout_converter():
    """Forgets conversions that were found before."""
    for manager in (LayoutConverter._manager, LayoutConverter._forward):
        manager.cached_spec_pairs_transform_path.clear()


def _with_layout(tensor, layout):
    """Its detach() and clone() have the layout, too."""
    tensor.dist_layout = layout
    for name in ("detach", "clone"):
        plain = getattr(type(tensor), name)
        setattr(tensor, name, types.MethodType(lambda self, *args, plain=plain, **named: _keeping(plain(self, *args, **named), layout), tensor))
    return tensor


def _keeping(tensor, layout):
    tensor.dist_layout = layout
    return tensor


def is_distributed_tensor(tensor):
    return hasattr(tensor, "dist_layout")


def _need(tensor, wanted=True):
    if is_distributed_tensor(tensor) != wanted:
        raise ValueError(f"castor: a tensor of shape {tuple(tensor.shape)} is {'no' if wanted else 'already a'} distributed tensor: "
                         + ("distribute_tensor() makes one" if wanted else "redistribute() converts it"))


def distribute_tensor(tensor, device_mesh, sharding_spec):
    """This rank's part of `tensor`, which is whole on every rank, as a distributed tensor. ValueError: it is one, or does not divide."""
    _need(tensor, False)
    whole = Layout(device_mesh, ShardingSpec(tensor.dim(), {}), tensor.shape)
    return _converter.apply(tensor, whole, Layout(device_mesh, sharding_spec, tensor.shape))


def init_as_dtensor(tensor, device_mesh, sharding_spec, global_shape):
    """Makes `tensor`, which is this rank's part of one of global_shape already, a distributed tensor in place, and returns it. ValueError: it is one, or
    has another shape than that part."""
    _need(tensor, False)
    layout = Layout(device_mesh, sharding_spec, global_shape)
    if tensor.shape != layout.get_sharded_shape_per_device():
        raise ValueError(f"castor: a part of shape {tuple(tensor.shape)}: expected {tuple(layout.get_sharded_shape_per_device())} of {tuple(global_shape)} by {sharding_spec}")
    return _with_layout(tensor, layout)


def redistribute(dtensor, device_mesh, sharding_spec):
    """This rank's part of the same whole tensor under another ShardingSpec, over the same mesh; a new distributed tensor. ValueError: of another mesh."""
    _need(dtensor)
    if device_mesh is not dtensor.dist_layout.device_mesh:
        raise ValueError("castor: redistribute() to another DeviceMesh: make the tensor whole by to_global(), and distribute it over that one")
    return _converter.apply(dtensor, dtensor.dist_layout, Layout(device_mesh, sharding_spec, dtensor.dist_layout.global_shape))


def to_global(dtensor):
    """The whole tensor, on every rank."""
    _need(dtensor)
    layout = dtensor.dist_layout
    return _converter.apply(dtensor, layout, Layout(layout.device_mesh, ShardingSpec(dtensor.dim(), {}), layout.global_shape))


def _one_axis(group_or_device_mesh):
    if isinstance(group_or_device_mesh, DeviceMesh):
        if len(group_or_device_mesh.shape) != 1:
            raise ValueError(f"castor: a DeviceMesh of shape {tuple(group_or_device_mesh.shape)}: expected one axis")
        return group_or_device_mesh
    return DeviceMesh.from_process_group(dist.group.WORLD if group_or_device_mesh is None else group_or_device_mesh)


def shard_rowwise(tensor, group_or_device_mesh=None):
    """This rank's part of the first dimension, over a process group (None: all ranks) or a DeviceMesh of one axis."""
    return distribute_tensor(tensor, _one_axis(group_or_device_mesh), ShardingSpec(tensor.dim(), {0: [0]}))


def shard_colwise(tensor, group_or_device_mesh=None):
    """The same of the last dimension."""
    return distribute_tensor(tensor, _one_axis(group_or_device_mesh), ShardingSpec(tensor.dim(), {-1: [0]}))


def sharded_tensor_to_param(dtensor, requires_grad=True):
    """A torch.nn.Parameter over the same memory, which is a distributed tensor, too."""
    _need(dtensor)
    return _with_layout(torch.nn.Parameter(dtensor.data, requires_grad=requires_grad), dtensor.dist_layout)


def sharded_tensor_to_existing_param(dtensor, param):
    """Gives a Parameter this data, and makes it a distributed tensor."""
    _need(dtensor)
    param.data = dtensor.data
    _with_layout(param, dtensor.dist_layout)


def get_layout(dtensor):
    _need(dtensor)
    return dtensor.dist_layout


def get_global_shape(dtensor):
    """The whole tensor's shape, a torch.Size."""
    return get_layout(dtensor).global_shape


def get_device_mesh(dtensor):
    return get_layout(dtensor).device_mesh


def get_sharding_spec(dtensor):
    return get_layout(dtensor).sharding_spec


def compute_global_numel(dtensor):
    """The number of elements of the whole tensor."""
    return math.prod(get_global_shape(dtensor))


def is_sharded(dtensor):
    """Whether it is a real part of the whole."""
    return dtensor.shape != get_global_shape(dtensor)


def get_shard_dim_1d(p):
    """The dimension that axis 0 of the mesh divides. ValueError: none is."""
    sequence = get_sharding_spec(p).sharding_sequence
    if _DimSpec([0]) not in sequence:
        raise ValueError(f"castor: no dimension of {sequence} is divided by axis 0 alone")
    return sequence.index(_DimSpec([0]))
