"""The job's ranks: grids of process groups, and who does what (Colossal-AI: colossalai.cluster)."""
from .dist_coordinator import DistCoordinator
from .process_group_mesh import ProcessGroupMesh

__all__ = ["DistCoordinator", "ProcessGroupMesh"]
