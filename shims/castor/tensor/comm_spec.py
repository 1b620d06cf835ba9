"""A communication that changes how a tensor is divided: its cost, and the communication itself (Colossal-AI:
colossalai.tensor.comm_spec)."""
import enum

import torch

from .. import parallel
from ..agent import core
from . import _blocks

__all__ = ["CollectiveCommPattern", "CommSpec"]


class CollectiveCommPattern(enum.Enum):
    GATHER_FWD_SPLIT_BWD = "gather_fwd_split_bwd"
    ALL2ALL_FWD_ALL2ALL_BWD = "all2all_fwd_all2all_bwd"
    SPLIT_FWD_GATHER_BWD = "split_fwd_gather_bwd"
    ALLREDUCE_FWD_IDENTITY_BWD = "all_reduce_fwd_identity_bwd"
    IDENTITY_FWD_ALLREDUCE_BWD = "identity_fwd_all_reduce_bwd"
    MIXGATHER_FWD_SPLIT_BWD = "mixgather_fwd_split_bwd"


class CommSpec:
    """One communication along axes of a mesh.

    Args:
        comm_pattern: a CollectiveCommPattern.
        sharding_spec: the ShardingSpec of the tensor before it; its part of a rank, in elements, is the size.
        gather_dim, shard_dim: the dimensions that are put together and divided, as the pattern needs them. MIXGATHER: lists.
        logical_process_axis: the mesh's axis; a list of axes counts as the flattened mesh.
        forward_only: no backward.
        mix_gather: the pattern is MIXGATHER, on both axes of a mesh of two.

    `shard_cost`, an attribute, is what a split costs in get_comm_cost(); 0."""

    def __init__(self, comm_pattern, sharding_spec, gather_dim=None, shard_dim=None, logical_process_axis=None, forward_only=False, mix_gather=False):
        if not isinstance(comm_pattern, CollectiveCommPattern):
            raise TypeError(f"castor: {comm_pattern!r} is no CollectiveCommPattern")
        self.comm_pattern = comm_pattern
        self.sharding_spec = sharding_spec
        self.gather_dim = gather_dim
        self.shard_dim = shard_dim
        self.logical_process_axis = logical_process_axis
        self.forward_only = forward_only
        self.mix_gather = mix_gather
        self.shard_cost = 0
        self.device_mesh = None if sharding_spec is None else sharding_spec.device_mesh

    def get_comm_cost(self):
        """{"forward", "backward", "total"} by the alpha-beta model of the mesh (DeviceMesh.all_gather_cost and so on)."""
        flat = isinstance(self.logical_process_axis, (list, tuple)) or self.comm_pattern is CollectiveCommPattern.MIXGATHER_FWD_SPLIT_BWD
        return parallel.communication_cost(
            self.device_mesh._mesh, self.sharding_spec._spec, pattern=getattr(core, self.comm_pattern.name), gather_dim=_one(self.gather_dim),
            shard_dim=_one(self.shard_dim), axis=core.ALL_AXES if flat else self.logical_process_axis, forward_only=self.forward_only,
            shard_cost=self.shard_cost)

    def covert_spec_to_action(self, tensor):
        """Communicates: what `tensor`, this rank's part, becomes. Differentiable, unless forward_only. Every rank on the axis calls it. The
        mesh is made with init_process_group=True."""
        axes = self.logical_process_axis
        if self.comm_pattern is CollectiveCommPattern.MIXGATHER_FWD_SPLIT_BWD and axes is None:
            axes = list(range(len(self.device_mesh.mesh_shape)))
        line = _blocks.Line(*self.device_mesh.group_along(axes))
        # A gather's and a split's are one dimension: either may be given.
        gathered = self._divisions(self.shard_dim if self.gather_dim is None else self.gather_dim, line)
        divided = self._divisions(self.gather_dim if self.shard_dim is None else self.shard_dim, line)
        forward, backward = _PAIRS[self.comm_pattern]
        if self.forward_only:
            with torch.no_grad():
                return forward(line, gathered, divided)(tensor)
        return _blocks.Communication.apply(tensor, forward(line, gathered, divided), backward(line, divided, gathered))

    def _divisions(self, dims, line):
        """By the line's ranks; of a list of dimensions, each by one axis of the mesh."""
        dims = list(dims) if isinstance(dims, (list, tuple)) else [dims]
        return [(dims[0], len(line.ranks))] if len(dims) == 1 else list(zip(dims, self.device_mesh.mesh_shape))

    convert_spec_to_action = covert_spec_to_action

    def __repr__(self):
        given = {"gather_dim": self.gather_dim, "shard_dim": self.shard_dim, "logical_process_axis": self.logical_process_axis}
        return f"CommSpec:({', '.join([f'comm_pattern:{self.comm_pattern.name}', *(f'{name}:{value}' for name, value in given.items() if value is not None)])})"


def _one(dim):
    return -1 if dim is None else dim[0] if isinstance(dim, (list, tuple)) else dim


def _gather(line, gathered, divided):
    return lambda tensor: line.gather(tensor, gathered)


def _split(line, gathered, divided):
    return lambda tensor: _blocks.block(tensor, divided, line.place)


def _exchange(line, gathered, divided):
    return lambda tensor: line.exchange(tensor, gathered[0][0], divided[0][0])


def _sum(line, gathered, divided):
    return line.sum


def _identity(line, gathered, divided):
    return _blocks.same


_PAIRS = {  # in forward, and in backward, where the dimensions are exchanged
    CollectiveCommPattern.GATHER_FWD_SPLIT_BWD: (_gather, _split),
    CollectiveCommPattern.ALL2ALL_FWD_ALL2ALL_BWD: (_exchange, _exchange),
    CollectiveCommPattern.SPLIT_FWD_GATHER_BWD: (_split, _gather),
    CollectiveCommPattern.ALLREDUCE_FWD_IDENTITY_BWD: (_sum, _identity),
    CollectiveCommPattern.IDENTITY_FWD_ALLREDUCE_BWD: (_identity, _sum),
    CollectiveCommPattern.MIXGATHER_FWD_SPLIT_BWD: (_gather, _split),
}
