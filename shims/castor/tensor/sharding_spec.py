"""Which axes of a mesh divide which dimension of a tensor (Colossal-AI: colossalai.tensor.sharding_spec)."""
import torch

from ..parallel import Spec
from .utils import merge_same_dim_mesh_list

__all__ = ["ShardingSpec"]


class _DimSpec:
    """One dimension: the axes that divide it, the one with the largest parts first; R without any, S01 for axes 0 and 1."""

    def __init__(self, shard_list):
        self.shard_list = list(shard_list)
        self.is_replica = not self.shard_list

    def __eq__(self, other):
        return isinstance(other, _DimSpec) and self.shard_list == other.shard_list

    def __hash__(self):
        return hash(tuple(self.shard_list))

    def __repr__(self):
        return "S" + "".join(map(str, self.shard_list)) if self.shard_list else "R"


class ShardingSpec:
    """How a tensor is divided over a DeviceMesh.

    Args:
        device_mesh: a castor.device.device_mesh.DeviceMesh.
        entire_shape: the whole tensor's shape.
        dim_partition_dict: {dimension: [axis, ...]}; negative dimensions count from the last one. The dict is not changed.
        sharding_sequence: instead of it, a list with one of `[axis, ...]`, "R" or "S01" for each dimension.

    `dim_partition_dict` and `sharding_sequence` are attributes. ValueError: both or none are given, an axis is not in the mesh or
    divides twice, a dimension does not divide."""

    def __init__(self, device_mesh, entire_shape, dim_partition_dict=None, sharding_sequence=None):
        self.device_mesh = device_mesh
        self.entire_shape = torch.Size(entire_shape)
        if (dim_partition_dict is None) == (sharding_sequence is None):
            raise ValueError("castor: a ShardingSpec is made with a dim_partition_dict or with a sharding_sequence")
        if sharding_sequence is not None:
            if len(sharding_sequence) != len(self.entire_shape):
                raise ValueError(f"castor: a sharding_sequence of {len(sharding_sequence)} for a tensor of {len(self.entire_shape)} dimensions")
            dim_partition_dict = {dim: axes for dim, axes in enumerate(map(_axes, sharding_sequence)) if axes}
        self.dim_partition_dict = merge_same_dim_mesh_list(len(self.entire_shape), dim_partition_dict)
        self._spec = Spec(self.entire_shape, self.dim_partition_dict)
        self._sharded_shape = torch.Size(self._spec.sharded_shape(device_mesh._mesh))
        self.sharding_sequence = [_DimSpec(axes) for axes in self._spec.axes()]

    @classmethod
    def _of(cls, device_mesh, spec):
        """From the library's own."""
        return cls(device_mesh, spec.shape, {dim: axes for dim, axes in enumerate(spec.axes()) if axes})

    def get_sharded_shape_per_device(self):
        """The shape of one rank's part, a torch.Size."""
        return self._sharded_shape

    def convert_dict_to_shard_sequence(self):
        """For each dimension its axes; called by scripts that have changed dim_partition_dict."""
        self.__init__(self.device_mesh, self.entire_shape, self.dim_partition_dict)

    def convert_shard_sequence_to_dict(self):
        """The same for scripts that have changed sharding_sequence."""
        self.__init__(self.device_mesh, self.entire_shape, sharding_sequence=self.sharding_sequence)

    def __repr__(self):
        return f"DistSpec:\n\tshard_sequence: {','.join(map(str, self.sharding_sequence))}\n\tdevice_mesh_shape: {self.device_mesh.mesh_shape}"


def _axes(entry):
    if isinstance(entry, _DimSpec):
        return entry.shard_list
    if not isinstance(entry, str):
        return list(entry)
    if entry == "R":
        return []
    if entry[:1] != "S" or not entry[1:].isdigit():
        raise ValueError(f"castor: {entry!r} in a sharding_sequence: expected R, or S and the numbers of axes")
    return [int(digit) for digit in entry[1:]]
