"""The job's ranks as data x pipeline x tensor, as castor.launch was told (`parallel` of its configuration)."""
import torch
import torch.distributed as dist

from ..agent import core
from ..agent.common import store
from ..cluster.process_group_mesh import ProcessGroupMesh
from . import _agreement

_groups = None  # of the job


class ParallelGroups:
    """Rank d * S * t + s * t + i is replica d, stage s, tensor-parallel rank i; without `data_outside`, of D replicas, rank s * D * t + d * t + i.

    stages, stage: the number of pipeline stages, and this rank's.
    tensor_size, data_size: ranks of the other groups. stage_group, tensor_group, data_group: PyTorch's groups; None: of one rank.
    forward_group, backward_group: for messages between stages, and for these alone; None: there is one stage.
    model_group: of all ranks of this replica, for what they say to each other about a batch; None: there is one stage.
    stage_ranks: the ranks of this rank's pipeline, by stage; pipelines: those of all."""

    def __init__(self, stages, tensor, data_outside=True):
        world = dist.get_world_size()
        if stages < 1 or tensor < 1 or world % (stages * tensor):
            raise ValueError(f"castor: {stages} pipeline stages x {tensor} tensor-parallel ranks do not divide the job's {world} ranks")
        data, stage = (0, 1) if data_outside else (1, 0)  # the mesh's axes
        sizes = {data: world // (stages * tensor), stage: stages}
        self.mesh = mesh = ProcessGroupMesh(sizes[0], sizes[1], tensor)
        self.data_size, self.stages, self.tensor_size = sizes[data], stages, tensor
        self.stage = mesh.coordinate(stage)
        self.pipelines = list(mesh._mesh.lines([stage]))
        self.stage_ranks = next(ranks for ranks in self.pipelines if mesh.rank in ranks)
        self.stage_group = mesh.create_group_along_axis(stage) if self.stages > 1 else None
        self.forward_group, self.backward_group = self._groups_of_messages()
        self.model_group = self._own_group(mesh._mesh.lines(sorted([stage, 2]))) if self.stages > 1 else None
        self.broken = None  # why no batch can follow
        self.tensor_group = mesh.create_group_along_axis(2) if self.tensor_size > 1 else None
        self.data_group = mesh.create_group_along_axis(data) if self.data_size > 1 else None
        self.data_ranks = mesh._mesh.line_of([data], mesh.rank)

    def _own_group(self, lines):
        """The one of these groups that has this rank, and that nothing else uses."""
        made = [(ranks, dist.new_group(ranks)) for ranks in map(list, lines)]
        return next(group for ranks, group in made if self.mesh.rank in ranks)

    def break_off(self, error):
        """A batch failed here, and the other ranks wait for its messages: they get an error, whether or not the script goes on here."""
        self.broken = self.broken or f"{type(error).__name__}: {error}"
        for group in store.groups():  # whose sums other replicas wait for
            core.fail(group.handle, f"a stage of a pipeline failed ({self.broken[:200]})".encode(), 0)
        closed = {self.forward_group, self.backward_group, self.model_group} - {None}
        self.forward_group = self.backward_group = self.model_group = None
        for group in closed if dist.get_backend() != "nccl" else ():
            dist.destroy_process_group(group)

    def refuse_broken(self):
        if self.broken:
            raise RuntimeError(f"castor: a batch of this pipeline has failed ({self.broken}), and no other one can follow: let the exception end the script")

    def _groups_of_messages(self):
        """Closed when a batch fails, so that no neighbour waits. NCCL does what two ranks of a group send to each other one after another, in the
        order in which each of them has begun it. A stage that sends an output while the next one sends a gradient would wait for ever: each
        direction has a group."""
        if self.stages == 1:
            return None, None
        forward = self._own_group(self.pipelines)
        return forward, self._own_group(self.pipelines) if dist.get_backend() == "nccl" else forward


def configure(parallel):
    """Makes the groups of launch's `parallel`: {"pipeline": S or {"size": S}, "tensor": {"size": t, "mode": "1d"}}. Every rank calls it, also
    with an empty one. ValueError on all of them: they have different numbers."""
    unknown = sorted(set(parallel) - {"pipeline", "tensor"})
    if unknown:
        raise ValueError(f"castor: the configuration's parallel has {', '.join(map(repr, unknown))}: expected 'pipeline' and 'tensor'")
    tensor = parallel.get("tensor") or {}
    sizes = _size(parallel.get("pipeline")), _size(tensor)
    if dist.get_world_size() > 1:
        device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
        said = dict(zip(("the number of pipeline stages", "the number of tensor-parallel ranks"), sizes))
        _agreement.compare(_agreement.exchange(said, None, device, "launch"), said, "all ranks of a job")
    if not parallel:
        return
    if isinstance(tensor, dict) and tensor.get("mode") not in (None, "1d"):
        raise ValueError(f"castor: tensor parallelism of mode {tensor['mode']!r}: expected '1d'")
    use(ParallelGroups(*sizes))


def use(made):
    """`made` are the job's groups from here on."""
    global _groups
    _groups = made


def _size(given):
    return int((given.get("size", 1) if isinstance(given, dict) else given) or 1)


def groups():
    """None: castor.launch was told of no pipeline and no tensor parallelism."""
    return _groups
