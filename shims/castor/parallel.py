"""What the C library computes of groups, meshes, specifications and schedules, in Python's types. Nothing is decided here."""
from ctypes import byref, c_double, c_int32, c_int64, c_uint32, c_uint64, create_string_buffer

from .agent import core

core.require()


def call(function, *arguments):
    """A function of the library that fails only for bad arguments: ValueError."""
    try:
        return function(*arguments)
    except core.Error as error:
        raise ValueError(str(error)) from None


def int32s(values):
    """An array of C's int32_t. ValueError: one is none."""
    values = list(values)
    for value in values:
        if not isinstance(value, int) or not -1 << 31 <= value < 1 << 31:
            raise ValueError(f"castor: {value!r} is no number of a rank, a dimension or an axis")
    return (c_int32 * len(values))(*values)


def group_lists(ranks, tp, dp):
    """(sorted ranks, tensor lists, data lists); degrees may be None."""
    for name, degree in (("tp_degree", tp), ("dp_degree", dp)):
        if degree is not None and degree < 1:
            raise ValueError(f"castor: {name} is {degree}: degrees are 1 or more")
    ranks = int32s(ranks)
    tp, dp = c_int32(tp or 0), c_int32(dp or 0)
    call(core.ranks_sort, ranks, len(ranks), ranks)
    call(core.ranks_degrees, len(ranks), byref(tp), byref(dp))

    def lists(kind, count, length):
        out = (c_int32 * length)()
        for index in range(count):
            call(core.ranks_list, kind, ranks, tp, dp, index, out)
            yield list(out)

    return list(ranks), list(lists(core.LIST_TENSOR, dp.value, tp.value)), list(lists(core.LIST_DATA, tp.value, dp.value))


class Mesh:
    """castor_mesh: a grid of ranks."""

    def __init__(self, ranks, shape, alpha=None, beta=None):
        self._ranks = int32s(ranks)  # the structure points to them
        self.c = core.Mesh()
        costs = [None if values is None else (c_double * len(shape))(*values) for values in (alpha, beta)]
        call(core.mesh_make, byref(self.c), self._ranks, len(self._ranks), int32s(shape), len(shape), *costs)

    @property
    def ranks(self):
        return list(self._ranks)

    @property
    def shape(self):
        return tuple(self.c.shape[: self.c.axes])

    def coordinates(self, rank):
        """None: the rank is not in the mesh."""
        out = (c_int32 * self.c.axes)()
        return list(out) if core.mesh_coordinates(byref(self.c), rank, out) else None

    def rank(self, coordinates):
        out = c_int32()
        call(core.mesh_rank, byref(self.c), int32s(coordinates), byref(out))
        return out.value

    def lines(self, axes):
        """All lists of ranks whose coordinates differ on these axes only."""
        axes, count, length = int32s(axes), c_int32(), c_int32()
        call(core.mesh_line, byref(self.c), axes, len(axes), 0, None, byref(count), byref(length))
        out = (c_int32 * length.value)()
        for index in range(count.value):
            call(core.mesh_line, byref(self.c), axes, len(axes), index, out, byref(count), byref(length))
            yield list(out)

    def line_of(self, axes, rank):
        """The one of lines() that a rank is in."""
        axes, index, place, count, length = int32s(axes), c_int32(), c_int32(), c_int32(), c_int32()
        call(core.mesh_line_of, byref(self.c), axes, len(axes), rank, byref(index), byref(place))
        call(core.mesh_line, byref(self.c), axes, len(axes), index, None, byref(count), byref(length))
        out = (c_int32 * length.value)()
        call(core.mesh_line, byref(self.c), axes, len(axes), index, out, byref(count), byref(length))
        return list(out)

    def cost(self, collective, size, axis):
        """Of core.MESH_ALL_GATHER and so on, for `size` elements along an axis; core.ALL_AXES: of the flattened mesh."""
        out = c_double()
        call(core.mesh_cost, byref(self.c), collective, size, axis, byref(out))
        return out.value


def _partitions(partitions):
    made = (core.Partition * len(partitions))()
    for one, (dim, axes) in zip(made, partitions.items()):
        if len(axes) > core.MESH_AXES:
            raise ValueError(f"castor: dimension {dim} is divided by {len(axes)} axes: a mesh has at most {core.MESH_AXES}")
        one.dim, one.count = dim, len(axes)
        one.axes[: len(axes)] = axes
    return made


def _as_dict(partitions):
    return {one.dim: list(one.axes[: one.count]) for one in partitions}


def convert_partitions(dims, partitions):
    out = (core.Partition * len(partitions))()
    call(core.partitions_convert, dims, _partitions(partitions), len(partitions), out)
    return _as_dict(out)


def merge_partitions(dims, partitions):
    out, merged = (core.Partition * len(partitions))(), c_uint32()
    call(core.partitions_merge, dims, _partitions(partitions), len(partitions), out, byref(merged))
    return _as_dict(out[: merged.value])


class Spec:
    """castor_spec: which axes of a mesh divide which dimension."""

    def __init__(self, shape=None, partitions=None, c=None):
        self.c = core.Spec() if c is None else c
        if c is None:
            call(core.spec_make, (c_int64 * len(shape))(*shape), len(shape), _partitions(partitions), len(partitions), byref(self.c))

    @property
    def shape(self):
        return tuple(self.c.shape[: self.c.dims])

    def axes(self):
        """For each dimension, the axes that divide it."""
        return [list(self.c.axes[dim][: self.c.counts[dim]]) for dim in range(self.c.dims)]

    def sharded_shape(self, mesh):
        out = (c_int64 * self.c.dims)()
        call(core.spec_shape, byref(mesh.c), byref(self.c), out)
        return tuple(out)

    def text(self):
        out = create_string_buffer(core.SPEC_TEXT)
        call(core.spec_print, byref(self.c), out, len(out))
        return out.value.decode()


def _costs(cost):
    return {"forward": cost.forward, "backward": cost.backward, "total": cost.total}


def communication_cost(mesh, spec, **fields):
    """A dict of forward, backward and total of a castor_communication with these fields."""
    out = core.Cost()
    call(core.communication_cost, byref(mesh.c), byref(spec.c), byref(core.Communication(**fields)), byref(out))
    return _costs(out)


def transforms(mesh, spec, forward_only=False, shard_cost=0.0):
    """(castor_communication, spec after it, its costs) of all that change a spec in one step."""
    out, count = (core.Transform * core.TRANSFORMS_MOST)(), c_uint32()
    call(core.spec_transforms, byref(mesh.c), byref(spec.c), forward_only, shard_cost, out, byref(count))
    return [(one.action, Spec(c=one.after), _costs(one.cost)) for one in out[: count.value]]


def path(mesh, source, target, forward_only=False, shard_cost=0.0):
    """(the transforms from one spec to another one, the sum of their costs)."""
    out, count, cost = (core.Transform * core.PATH_MOST)(), c_uint32(), core.Cost()
    call(core.spec_path, byref(mesh.c), byref(source.c), byref(target.c), forward_only, shard_cost, out, byref(count), byref(cost))
    return [(one.action, Spec(c=one.after), _costs(one.cost)) for one in out[: count.value]], _costs(cost)


def operations(style, stages, microbatches, slices, stage):
    """(pass, microbatch, slice) of each operation of a pipeline's stage."""
    pipeline, count = core.Pipeline(style, stages, microbatches, slices), c_uint64()
    call(core.pipeline_operations, byref(pipeline), stage, None, 0, byref(count))
    out = (core.Operation * count.value)()
    call(core.pipeline_operations, byref(pipeline), stage, out, count, byref(count))
    return [(one.kind, one.microbatch, one.slice) for one in out]


def divide(costs, stages):
    """The first layer after each stage."""
    ends, largest = (c_uint32 * stages)(), c_uint64()
    call(core.stages_divide, (c_uint64 * len(costs))(*costs), len(costs), stages, ends, byref(largest))
    return list(ends)
