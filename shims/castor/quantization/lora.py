"""LoRA modules by the library peft."""
import torch

from ..interface import ModelWrapper
from ..trainer.utils import is_rank_0
from .bnb import quantize_model
from .bnb_config import BnbQuantizationConfig

__all__ = ["enable", "save"]


def _peft():
    try:
        import peft
    except ImportError:
        raise ImportError("castor: LoRA needs the library peft, which is not installed: pip install peft") from None
    return peft


def enable(model, pretrained_dir=None, lora_config=None, bnb_quantization_config=None, quantize=False):
    """Booster.enable_lora."""
    peft = _peft()
    if pretrained_dir is None and lora_config is None:
        raise ValueError("castor: enable_lora() needs lora_config (a peft.LoraConfig), or pretrained_dir, a directory that has one")
    if isinstance(model, ModelWrapper):
        raise ValueError("castor: enable_lora() of a model that was boosted already: call it before boost()")
    if quantize and bnb_quantization_config is None:
        bnb_quantization_config = BnbQuantizationConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16, bnb_4bit_use_double_quant=True,
                                                        bnb_4bit_quant_type="nf4")
    if bnb_quantization_config is not None:
        model = quantize_model(model, bnb_quantization_config)
    if pretrained_dir is None:
        return peft.get_peft_model(model, lora_config)
    return peft.PeftModel.from_pretrained(model, pretrained_dir, is_trainable=True, **({} if lora_config is None else {"config": lora_config}))


def save(model, checkpoint, use_safetensors=False):
    """Booster.save_lora_as_pretrained."""
    peft = _peft()
    module = model.unwrap() if isinstance(model, ModelWrapper) else model
    if not isinstance(module, peft.PeftModel):
        raise ValueError(f"castor: save_lora_as_pretrained() of a {type(module).__name__}, which has no LoRA modules: give it the model of enable_lora()")
    gather = getattr(model, "gathered_state", None)  # of a model whose layers are on several ranks, each of which calls this
    state = {} if gather is None else {"state_dict": gather()}
    if is_rank_0():
        module.save_pretrained(checkpoint, safe_serialization=use_safetensors, **state)
