"""The Booster and its plugins (Colossal-AI: colossalai.booster)."""
from .accelerator import Accelerator
from .booster import Booster
from .plugin.plugin_base import Plugin

__all__ = ["Accelerator", "Booster", "Plugin"]
