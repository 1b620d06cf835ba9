"""LoRA modules and quantized weights (Colossal-AI: colossalai.quantization)."""
from .bnb import quantize_model
from .bnb_config import BnbQuantizationConfig

__all__ = ["BnbQuantizationConfig", "quantize_model"]
