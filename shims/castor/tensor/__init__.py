"""Tensors that are divided over ranks (Colossal-AI: colossalai.tensor)."""
from ..agent import core

core.require()

from . import _ops  # noqa: E402,F401 - registers operators
from .colo_parameter import ColoParameter  # noqa: E402
from .colo_tensor import ColoTensor  # noqa: E402
from .comm_spec import CollectiveCommPattern, CommSpec  # noqa: E402
from .compute_spec import ComputePattern, ComputeSpec  # noqa: E402
from .const import TensorType  # noqa: E402
from .dist_spec_mgr import DistSpecManager  # noqa: E402
from .distspec import DistPlacementPattern, ReplicaSpec, ShardSpec  # noqa: E402
from .param_op_hook import ColoParamOpHook, ColoParamOpHookManager  # noqa: E402
from .process_group import ProcessGroup  # noqa: E402
from .shape_consistency import ShapeConsistencyManager  # noqa: E402
from .sharding_spec import ShardingSpec  # noqa: E402
from .tensor_spec import ColoTensorSpec  # noqa: E402
from .utils import convert_dim_partition_dict, merge_same_dim_mesh_list, named_params_with_colotensor  # noqa: E402
