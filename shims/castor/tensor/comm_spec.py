"""A communication that changes how a tensor is divided: its cost, and the communication itself (Colossal-AI:
colossalai.tensor.comm_spec)."""
import enum

import torch
import torch.distributed as dist

from .. import parallel
from ..agent import core

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
        group, ranks = self.device_mesh.group_along(axes)
        forward, backward = _PAIRS[self.comm_pattern]
        return _Communication.apply(tensor, _Line(group, ranks, self), forward, None if self.forward_only else backward)

    convert_spec_to_action = covert_spec_to_action

    def __repr__(self):
        given = {"gather_dim": self.gather_dim, "shard_dim": self.shard_dim, "logical_process_axis": self.logical_process_axis}
        return f"CommSpec:({', '.join([f'comm_pattern:{self.comm_pattern.name}', *(f'{name}:{value}' for name, value in given.items() if value is not None)])})"


def _one(dim):
    return -1 if dim is None else dim[0] if isinstance(dim, (list, tuple)) else dim


class _Line:
    """The ranks that communicate, and the dimensions."""

    def __init__(self, group, ranks, spec):
        self.group, self.ranks = group, ranks
        self.place = ranks.index(dist.get_rank())
        self.order = sorted(range(len(ranks)), key=ranks.__getitem__)  # PyTorch's groups are in the order of the ranks' numbers
        self.gather_dim = spec.shard_dim if spec.gather_dim is None else spec.gather_dim  # a gather's and a split's are one dimension
        self.shard_dim = spec.gather_dim if spec.shard_dim is None else spec.shard_dim
        self.shape = spec.device_mesh.mesh_shape

    def reversed(self):
        """What the backward of a gather, a split or an exchange works on."""
        other = object.__new__(_Line)
        other.__dict__.update(self.__dict__, gather_dim=self.shard_dim, shard_dim=self.gather_dim)
        return other

    def all_gather(self, tensor):
        """The parts of the line's ranks, in its order."""
        parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in self.ranks]
        dist.all_gather([parts[place] for place in self.order], tensor.contiguous(), group=self.group)
        return parts


def _gather(tensor, line):
    return torch.cat(line.all_gather(tensor), line.gather_dim)


def _split(tensor, line):
    _check(tensor, line.shard_dim, len(line.ranks))
    return tensor.chunk(len(line.ranks), line.shard_dim)[line.place].contiguous()


def _check(tensor, dim, parts):
    if tensor.size(dim) % parts:
        raise ValueError(f"castor: dimension {dim} of a part of shape {tuple(tensor.shape)} does not divide into {parts}")


def _exchange(tensor, line):
    _check(tensor, line.shard_dim, len(line.ranks))
    parts = tensor.chunk(len(line.ranks), line.shard_dim)
    outgoing = torch.stack([parts[place] for place in line.order])
    incoming = torch.empty_like(outgoing)
    dist.all_to_all_single(incoming, outgoing, group=line.group)
    arrived = dict(zip(line.order, incoming.unbind(0)))
    return torch.cat([arrived[place] for place in range(len(line.ranks))], line.gather_dim)


def _sum(tensor, line):
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=line.group)
    return total


def _identity(tensor, line):
    return tensor.view_as(tensor)


def _mixed_gather(tensor, line):
    """gather_dim: the dimensions that the mesh's axes divide, one for each axis, or one that all divide in the order of the ranks."""
    parts = line.all_gather(tensor)
    dims = [line.gather_dim] if isinstance(line.gather_dim, int) else list(line.gather_dim)
    if len(dims) == 1:
        return torch.cat(parts, dims[0])
    for dim, count in reversed(list(zip(dims, line.shape))):
        parts = [torch.cat(parts[i:i + count], dim) for i in range(0, len(parts), count)]
    return parts[0]


def _mixed_split(tensor, line):
    dims = [line.shard_dim] if isinstance(line.shard_dim, int) else list(line.shard_dim)
    if len(dims) == 1:
        return tensor.chunk(len(line.ranks), dims[0])[line.place].contiguous()
    place = line.place
    for dim, count in reversed(list(zip(dims, line.shape))):
        place, part = divmod(place, count)
        tensor = tensor.chunk(count, dim)[part]
    return tensor.contiguous()


_PAIRS = {  # in forward, and in backward with the dimensions exchanged
    CollectiveCommPattern.GATHER_FWD_SPLIT_BWD: (_gather, _split),
    CollectiveCommPattern.ALL2ALL_FWD_ALL2ALL_BWD: (_exchange, _exchange),
    CollectiveCommPattern.SPLIT_FWD_GATHER_BWD: (_split, _gather),
    CollectiveCommPattern.ALLREDUCE_FWD_IDENTITY_BWD: (_sum, _identity),
    CollectiveCommPattern.IDENTITY_FWD_ALLREDUCE_BWD: (_identity, _sum),
    CollectiveCommPattern.MIXGATHER_FWD_SPLIT_BWD: (_mixed_gather, _mixed_split),
}


class _Communication(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, line, forward, backward):
        ctx.line, ctx.backward_action = line, backward
        if backward is None:
            result = forward(tensor, line)
            ctx.mark_non_differentiable(result)
            return result
        return forward(tensor, line)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.backward_action(gradient, ctx.line.reversed()), None, None, None
