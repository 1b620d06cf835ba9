"""Models whose data is kept once for all ranks (Colossal-AI: colossalai.zero)."""
from ._contexts import ColoInitContext, ZeroInitContext

__all__ = ["ColoInitContext", "ZeroInitContext"]
