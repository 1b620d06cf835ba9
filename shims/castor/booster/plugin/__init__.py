"""Plugins of the Booster (Colossal-AI: colossalai.booster.plugin)."""
import importlib

from .dp_plugin_base import DPPluginBase
from .gemini_plugin import GeminiPlugin
from .low_level_zero_plugin import LowLevelZeroPlugin
from .plugin_base import Plugin
from .torch_ddp_plugin import TorchDDPPlugin

_LATER = {"HybridParallelPlugin": "hybrid_parallel_plugin", "TorchFSDPPlugin": "torch_fsdp_plugin"}  # they need more of PyTorch

__all__ = ["DPPluginBase", "GeminiPlugin", "LowLevelZeroPlugin", "Plugin", "TorchDDPPlugin", *_LATER]


def __getattr__(name):
    if name in _LATER:
        return getattr(importlib.import_module("." + _LATER[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
