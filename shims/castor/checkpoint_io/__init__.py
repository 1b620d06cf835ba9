"""Checkpoints of models, optimizers and schedulers (Colossal-AI: colossalai.checkpoint_io); docs/checkpoints.md."""
from ._dcp import from_dcp, to_dcp
from ._files import CheckpointError
from .checkpoint_io_base import CheckpointIO
from .general_checkpoint_io import GeneralCheckpointIO
from .index_file import CheckpointIndexFile

__all__ = ["CheckpointError", "CheckpointIO", "CheckpointIndexFile", "GeneralCheckpointIO", "from_dcp", "to_dcp"]
