"""Group, placement and compute pattern of a ColoTensor (Colossal-AI: colossalai.tensor.tensor_spec)."""
import dataclasses

from .compute_spec import ComputeSpec
from .distspec import ReplicaSpec, _DistSpec
from .process_group import ProcessGroup

__all__ = ["ColoTensorSpec"]


@dataclasses.dataclass
class ColoTensorSpec:
    """What a ColoTensor is made with: `pg` (a ProcessGroup), `dist_attr` (ReplicaSpec() or ShardSpec(...)) and `compute_attr`
    (a ComputeSpec or None)."""

    pg: ProcessGroup
    dist_attr: _DistSpec = dataclasses.field(default_factory=ReplicaSpec)
    compute_attr: ComputeSpec | None = None
