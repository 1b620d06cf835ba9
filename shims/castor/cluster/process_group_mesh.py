"""All ranks of a job in a grid, with process groups along its axes (Colossal-AI: colossalai.cluster.process_group_mesh)."""
import itertools
import math

import torch.distributed as dist

from ..parallel import Mesh
from .process_groups import group_of, require

__all__ = ["ProcessGroupMesh"]


class ProcessGroupMesh:
    """The job's ranks in row-major order in a grid of shape `size`; the last axis changes fastest. Groups are made once for equal
    ranks and backends.

    RuntimeError: torch.distributed is not initialized. ValueError: the product of the sizes is not the number of ranks."""

    def __init__(self, *size):
        require("ProcessGroupMesh")
        if math.prod(size) != dist.get_world_size():
            raise ValueError(f"castor: a mesh of {' x '.join(map(str, size))} has not the job's {dist.get_world_size()} ranks")
        self._shape, self._rank = tuple(size), dist.get_rank()
        self._mesh = Mesh(range(dist.get_world_size()), self._shape)
        self._coordinate = tuple(self._mesh.coordinates(self._rank))

    @property
    def shape(self):
        return self._shape

    @property
    def rank(self):
        return self._rank

    def size(self, dim=None):
        """The shape, or the size of one axis."""
        return self._shape if dim is None else self._shape[dim]

    def coordinate(self, dim=None):
        """This rank's coordinates, a tuple, or the one on an axis."""
        return self._coordinate if dim is None else self._coordinate[dim]

    @staticmethod
    def unravel(rank, shape):
        """The coordinates of a rank in a grid."""
        found = Mesh(range(math.prod(shape)), shape).coordinates(rank)
        if found is None:
            raise ValueError(f"castor: rank {rank} is not in a mesh of shape {tuple(shape)}")
        return tuple(found)

    @staticmethod
    def ravel(coord, shape, mode="raise"):
        """The rank at coordinates. mode: "raise", or "wrap" or "clip" coordinates that are outside."""
        if mode == "wrap":
            coord = [index % size for index, size in zip(coord, shape)]
        elif mode == "clip":
            coord = [min(max(index, 0), size - 1) for index, size in zip(coord, shape)]
        elif mode != "raise":
            raise ValueError(f"castor: mode is {mode!r}: expected 'raise', 'wrap' or 'clip'")
        return Mesh(range(math.prod(shape)), shape).rank(coord)

    def get_group(self, ranks_in_group, backend=None):
        """PyTorch's group of these ranks, made if there is none. Every rank of the job calls it then."""
        return group_of(ranks_in_group, backend)

    def get_ranks_in_group(self, group):
        return dist.get_process_group_ranks(group)

    @staticmethod
    def get_coords_along_axis(base_coord, axis, indices_at_axis):
        """`base_coord` with each of the indices on an axis; with lists of both, with each combination, the last axis fastest."""
        axes, indices = ([axis], [indices_at_axis]) if isinstance(axis, int) else (axis, indices_at_axis)
        found = []
        for chosen in itertools.product(*indices):
            coord = list(base_coord)
            for one, index in zip(axes, chosen):
                coord[one] = index
            found.append(tuple(coord))
        return found

    def create_group_along_axis(self, axis, indices_at_axis=None, backend=None):
        """The groups of ranks whose coordinates differ on `axis` only (an int, or a list of ints), of these indices only if given; made if
        there are none. Every rank of the job calls it then. Returns this rank's; None: it is in none of them."""
        axes, indices = ([axis], [indices_at_axis]) if isinstance(axis, int) else (list(axis), indices_at_axis)
        own = None
        for line in self._mesh.lines(axes):
            ranks = [rank for rank in line if indices_at_axis is None or self._chosen(rank, axes, indices)]
            group = group_of(ranks, backend)
            own = group if self._rank in ranks else own
        return own

    get_group_along_axis = create_group_along_axis

    def _chosen(self, rank, axes, indices):
        coordinates = self._mesh.coordinates(rank)
        return all(coordinates[one] in allowed for one, allowed in zip(axes, indices))
