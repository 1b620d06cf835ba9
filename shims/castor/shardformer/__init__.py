"""Models divided over ranks: layers over tensor-parallel ones, chains of layers over pipeline stages (Colossal-AI: colossalai.shardformer)."""
from .shard import GradientCheckpointConfig, PipelineGradientCheckpointConfig, ShardConfig, ShardFormer

__all__ = ["GradientCheckpointConfig", "PipelineGradientCheckpointConfig", "ShardConfig", "ShardFormer"]
