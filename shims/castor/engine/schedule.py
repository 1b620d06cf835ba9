"""Schedules: how an engine trains on a batch (Colossal-AI: colossalai.engine.schedule)."""
from ..agent import core

core.require()

from ._schedule import BaseSchedule, NonPipelineSchedule  # noqa: E402 - says first what is missing

__all__ = ["BaseSchedule", "InterleavedPipelineSchedule", "NonPipelineSchedule", "PipelineSchedule", "ZeroBubblePipelineSchedule"]


def __getattr__(name):
    if name in ("InterleavedPipelineSchedule", "PipelineSchedule"):
        from . import _pipeline_schedule as module
    elif name == "ZeroBubblePipelineSchedule":
        from . import _zero_bubble as module
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)
