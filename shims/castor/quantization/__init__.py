"""LoRA modules and quantized weights (Colossal-AI: colossalai.quantization)."""
from .bnb_config import BnbQuantizationConfig

__all__ = ["BnbQuantizationConfig"]
