"""What the Booster returns: wrapped models and optimizers (Colossal-AI: colossalai.interface)."""
from .model import AMPModelMixin, ModelWrapper
from .optimizer import OptimizerWrapper

__all__ = ["AMPModelMixin", "ModelWrapper", "OptimizerWrapper"]
