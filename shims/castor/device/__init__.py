"""Meshes of ranks and what their collectives cost (Colossal-AI: colossalai.device)."""
from .alpha_beta_profiler import AlphaBetaProfiler

__all__ = ["AlphaBetaProfiler"]
