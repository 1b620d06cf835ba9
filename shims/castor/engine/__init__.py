"""A training loop's parts in one object (Colossal-AI: colossalai.engine)."""
from ..agent import core

core.require()

from ._engine import Engine  # noqa: E402 - says first what is missing
from .gradient_handler import BaseGradientHandler  # noqa: E402

__all__ = ["BaseGradientHandler", "Engine"]
