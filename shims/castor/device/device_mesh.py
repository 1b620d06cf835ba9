"""Ranks in a grid, their groups along its axes, and what collectives cost there (Colossal-AI: colossalai.device.device_mesh)."""
import math

import torch
import torch.distributed as dist

from ..agent import core
from ..cluster.process_groups import group_of
from ..parallel import Mesh

__all__ = ["DeviceMesh"]


class DeviceMesh:
    """A logical grid of ranks. Costs are alpha + beta x elements, for each axis.

    Args:
        physical_mesh_id: a tensor of ints of any shape: the ranks.
        mesh_shape: the logical grid's shape; its product is the number of ranks. Default: logical_mesh_id's, or that of
            physical_mesh_id.
        logical_mesh_id: a tensor of ints: the same ranks in their logical places, instead of mesh_shape.
        mesh_alpha, mesh_beta: a number for each axis, 1 by default: the time of a collective before the first element, and for
            each element (see all_gather_cost and so on).
        init_process_group: makes PyTorch's groups along each axis; every rank of the job makes the mesh then.
        device: accepted: groups communicate where the tensors are.
        need_flatten: `flatten_device_mesh` is the flattened mesh; otherwise None.

    ValueError: shape, ranks or costs do not fit together."""

    def __init__(self, physical_mesh_id, mesh_shape=None, logical_mesh_id=None, mesh_alpha=None, mesh_beta=None, init_process_group=False,
                 need_flatten=True, device=None):
        self.physical_mesh_id = torch.as_tensor(physical_mesh_id)
        if self.physical_mesh_id.is_floating_point():  # torch.Tensor([0, 1])
            if not torch.equal(self.physical_mesh_id, self.physical_mesh_id.long().to(self.physical_mesh_id.dtype)):
                raise ValueError(f"castor: {self.physical_mesh_id.tolist()} are no ranks: expected a tensor of ints")
            self.physical_mesh_id = self.physical_mesh_id.long()
        if logical_mesh_id is None:
            shape = self.physical_mesh_id.shape if mesh_shape is None else mesh_shape
            if math.prod(shape) != self.physical_mesh_id.numel():
                raise ValueError(f"castor: a mesh of shape {tuple(shape)} has no {self.physical_mesh_id.numel()} ranks")
            logical_mesh_id = self.physical_mesh_id.reshape(tuple(shape))
        else:
            logical_mesh_id = torch.as_tensor(logical_mesh_id)
            if mesh_shape is not None and tuple(mesh_shape) != tuple(logical_mesh_id.shape):
                raise ValueError(f"castor: mesh_shape is {tuple(mesh_shape)}, that of logical_mesh_id {tuple(logical_mesh_id.shape)}")
            if sorted(logical_mesh_id.flatten().tolist()) != sorted(self.physical_mesh_id.flatten().tolist()):
                raise ValueError("castor: logical_mesh_id and physical_mesh_id have other ranks")
        self._logical_mesh_id, self._is_init_from_process_group = logical_mesh_id, False
        self.mesh_shape = tuple(logical_mesh_id.shape)
        for name, costs in (("mesh_alpha", mesh_alpha), ("mesh_beta", mesh_beta)):
            if costs is not None and len(costs) != len(self.mesh_shape):
                raise ValueError(f"castor: {name} has {len(costs)} numbers for {len(self.mesh_shape)} axes")
        self.mesh_alpha = [1] * len(self.mesh_shape) if mesh_alpha is None else list(mesh_alpha)
        self.mesh_beta = [1] * len(self.mesh_shape) if mesh_beta is None else list(mesh_beta)
        self._mesh = Mesh(logical_mesh_id.flatten().tolist(), self.mesh_shape, self.mesh_alpha, self.mesh_beta)
        self.convert_map = {rank: self._mesh.coordinates(rank) for rank in self._mesh.ranks}
        self.need_flatten = need_flatten
        self.flatten_device_mesh = self.flatten() if need_flatten else None
        self.init_process_group = init_process_group
        self.process_groups_dict = self._whole_group = None
        if init_process_group:
            self.init_logical_process_group()

    @property
    def shape(self):
        return self.mesh_shape

    @property
    def num_devices(self):
        return math.prod(self.mesh_shape)

    @property
    def logical_mesh_id(self):
        return self._logical_mesh_id

    @property
    def is_initialized(self):
        """Whether it has PyTorch's groups."""
        return self.process_groups_dict is not None

    @staticmethod
    def from_process_group(process_group):
        """The mesh whose axes are these groups that this rank is in: one of PyTorch's groups, or a list of them, one for each axis. Which other ranks the
        mesh has is not known: `logical_mesh_id` is None, and what asks of a global rank is a RuntimeError."""
        groups = list(process_group) if isinstance(process_group, (list, tuple)) else [process_group]
        shape = [dist.get_world_size(group) for group in groups]
        mesh = DeviceMesh(torch.arange(math.prod(shape)), shape, need_flatten=False)
        mesh.mesh_shape, mesh.convert_map = shape, {}
        mesh.physical_mesh_id = mesh._logical_mesh_id = None
        mesh._is_init_from_process_group = True
        mesh.process_groups_dict = {axis: [(dist.get_process_group_ranks(group), group)] for axis, group in enumerate(groups)}
        return mesh

    def __deepcopy__(self, memo):
        """Meshes do not change, and PyTorch's groups cannot be copied."""
        return self

    def flatten(self):
        """A mesh of one axis with the same ranks in row-major order, the largest alpha and the largest beta."""
        self._know_ranks()
        return DeviceMesh(self._logical_mesh_id.flatten(), (self.num_devices,), mesh_alpha=[max(self.mesh_alpha)], mesh_beta=[max(self.mesh_beta)],
                          need_flatten=False)

    # ---- places and groups

    def global_rank_to_logical_rank(self, rank):
        """A rank's coordinates, as a list. ValueError: it is not in the mesh."""
        self._know_ranks()
        if rank not in self.convert_map:
            raise ValueError(f"castor: rank {rank} is not in the mesh of ranks {self._mesh.ranks}")
        return list(self.convert_map[rank])

    _global_rank_to_logical_rank = global_rank_to_logical_rank

    def _know_ranks(self):
        if self._is_init_from_process_group:
            raise RuntimeError("castor: the DeviceMesh was made by from_process_group(), which knows no global ranks: make it of physical_mesh_id and mesh_shape")

    def global_rank_to_local_rank(self, rank, axis=None):
        """A rank's coordinates, as a list, or the one on `axis`, an int. ValueError: it is not in the mesh."""
        found = self.global_rank_to_logical_rank(rank)
        return found if axis is None else found[axis]

    def init_logical_process_group(self):
        """Makes PyTorch's groups along each axis, for a mesh that was made without init_process_group. Every rank of the job calls it, once.
        RuntimeError: it has them already."""
        if self.is_initialized:
            raise RuntimeError("castor: the DeviceMesh has its process groups already")
        self.process_groups_dict = self.create_process_groups_for_logical_mesh()
        self._whole_group = group_of(self._mesh.ranks)

    def get_ranks_in_process_group(self, axis, global_rank=None):
        """The ranks on the line along `axis` that global_rank (None: this one) is on, in their order in the mesh."""
        if self._is_init_from_process_group and global_rank is None:
            return list(self.process_groups_dict[axis][0][0])
        return self.global_rank_to_process_groups_with_global_rank(dist.get_rank() if global_rank is None else global_rank)[axis]

    def get_process_group(self, axis, global_rank=None):
        """PyTorch's group along `axis` that global_rank (None: this one) is in. RuntimeError: the mesh has no groups. ValueError: the rank is not in it."""
        return self.get_process_group_for_all_axes(global_rank)[axis]

    def get_process_group_for_all_axes(self, global_rank=None):
        """{axis: PyTorch's group along it that global_rank (None: this one) is in}."""
        self._need_groups()
        if self._is_init_from_process_group and global_rank is None:
            return {axis: held[0][1] for axis, held in self.process_groups_dict.items()}
        rank = dist.get_rank() if global_rank is None else global_rank
        self.global_rank_to_logical_rank(rank)
        return {axis: next(group for ranks, group in held if rank in ranks) for axis, held in self.process_groups_dict.items()}

    def global_rank_to_process_groups_with_global_rank(self, rank):
        """For each axis, the ranks on the line along it that `rank` is on: {axis: [rank, ...]}."""
        self.global_rank_to_logical_rank(rank)
        return {axis: self._mesh.line_of([axis], rank) for axis in range(len(self.mesh_shape))}

    def global_rank_to_process_groups_with_logical_rank(self, rank):
        """The same with coordinates instead of ranks."""
        found = self.global_rank_to_process_groups_with_global_rank(rank)
        return {axis: [list(self.convert_map[one]) for one in ranks] for axis, ranks in found.items()}

    def create_process_groups_for_logical_mesh(self):
        """PyTorch's groups along each axis: {axis: [(ranks, group), ...]}. Every rank of the job calls it."""
        return {axis: [(ranks, group_of(ranks)) for ranks in self._mesh.lines([axis])] for axis in range(len(self.mesh_shape))}

    def group_along(self, axis):
        """(PyTorch's group, its ranks in the order of the mesh) that this rank is in along an axis; a list of axes: of the whole mesh.
        RuntimeError: the mesh was made without init_process_group. ValueError: the list does not name each axis."""
        self._need_groups()
        if isinstance(axis, int):
            rank = dist.get_rank()
            return next((group, ranks) for ranks, group in self.process_groups_dict[axis] if rank in ranks)
        if sorted(axis) != list(range(len(self.mesh_shape))):
            raise ValueError(f"castor: a communication along several axes is one along all {len(self.mesh_shape)} of the mesh, not along {list(axis)}")
        return self._whole_group, self._mesh.ranks

    def _need_groups(self):
        if not self.is_initialized:
            raise RuntimeError("castor: the DeviceMesh has no process groups: make it with init_process_group=True, or call init_logical_process_group(), on every rank")

    # ---- costs

    def all_gather_cost(self, num_bytes, mesh_dim):
        """alpha + beta (n-1)/n num_bytes + 0.1, for the n ranks along axis `mesh_dim`."""
        return self._mesh.cost(core.MESH_ALL_GATHER, num_bytes, mesh_dim)

    def all_reduce_cost(self, num_bytes, mesh_dim):
        """alpha + 2 beta (n-1)/n num_bytes + 0.01."""
        return self._mesh.cost(core.MESH_ALL_REDUCE, num_bytes, mesh_dim)

    def reduce_scatter_cost(self, num_bytes, mesh_dim):
        """alpha + beta (n-1)/n num_bytes + 0.001."""
        return self._mesh.cost(core.MESH_REDUCE_SCATTER, num_bytes, mesh_dim)

    def all_to_all_cost(self, num_bytes, mesh_dim):
        """alpha + beta (n-1)/n^2 num_bytes n/2 + 0.001."""
        return self._mesh.cost(core.MESH_ALL_TO_ALL, num_bytes, mesh_dim)

    def __repr__(self):
        return f"DeviceMesh({list(self.mesh_shape) if self._logical_mesh_id is None else self._logical_mesh_id.tolist()})"
