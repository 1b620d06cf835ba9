"""How a tensor lies on the ranks of a tensor-parallel group (Colossal-AI: colossalai.tensor.distspec)."""
import enum
import math

__all__ = ["DistPlacementPattern", "ReplicaSpec", "ShardSpec"]


class DistPlacementPattern(enum.Enum):
    REPLICATE = "r"
    SHARD = "s"


class _DistSpec:
    """A placement, and for SHARD the dimensions that are divided and into how many parts each. Made by ReplicaSpec and
    ShardSpec; equal if all is equal."""

    def __init__(self, dist_placement_pattern, dims=(), num_partitions=()):
        self.placement = dist_placement_pattern
        self.dims = list(dims)
        self.num_partitions = list(num_partitions)

    def partitions(self):
        return math.prod(self.num_partitions)

    def positive_dims(self, ndim):
        """The divided dimensions of a tensor of `ndim` dimensions, counted from 0. ValueError: it has no such dimension, or
        one is named twice."""
        for dim in self.dims:
            if not -ndim <= dim < ndim:
                raise ValueError(f"castor: {self} divides dimension {dim} of a tensor of {ndim} dimensions")
        dims = [dim % ndim for dim in self.dims]
        if len(set(dims)) != len(dims):
            raise ValueError(f"castor: {self} divides a dimension of a tensor of {ndim} dimensions twice")
        return dims

    def divisions(self, ndim):
        """[(dimension, parts)] of a tensor of `ndim` dimensions (_blocks.py)."""
        return list(zip(self.positive_dims(ndim), self.num_partitions))

    def __eq__(self, other):
        return (isinstance(other, _DistSpec) and self.placement == other.placement and self.dims == other.dims
                and self.num_partitions == other.num_partitions)

    def __hash__(self):
        return hash((self.placement, tuple(self.dims), tuple(self.num_partitions)))

    def __repr__(self):
        parts = f", dims={self.dims}, num_partitions={self.num_partitions}" if self.placement is DistPlacementPattern.SHARD else ""
        return f"DistSpec(placement={self.placement}{parts})"


def ReplicaSpec():
    """Every rank has the whole tensor."""
    return _DistSpec(DistPlacementPattern.REPLICATE)


def ShardSpec(dims, num_partitions, process_group=None):
    """Dimension dims[i] is divided into num_partitions[i] equal parts, and rank r of the tensor-parallel group holds block r in
    row-major order. The product of num_partitions is the size of that group.

    Args:
        dims: a list of ints; negative ones count from the last dimension.
        num_partitions: a list of ints >= 1, one for each dimension.
        process_group: accepted and ignored: the tensor's own group counts."""
    dims, num_partitions = list(dims), list(num_partitions)
    if not dims or len(dims) != len(num_partitions):
        raise ValueError(f"castor: ShardSpec needs one number of partitions for each dimension: {len(dims)} dims, {len(num_partitions)} num_partitions")
    if any(not isinstance(number, int) or number < 1 for number in num_partitions) or any(not isinstance(dim, int) for dim in dims):
        raise ValueError(f"castor: ShardSpec takes ints, and partitions of 1 or more: dims={dims}, num_partitions={num_partitions}")
    return _DistSpec(DistPlacementPattern.SHARD, dims, num_partitions)
