"""How bitsandbytes quantizes a model's weights (Colossal-AI: colossalai.quantization.bnb_config)."""
import dataclasses
import typing

import torch

__all__ = ["BnbQuantizationConfig"]

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def _dtype(name, value):
    if isinstance(value, str) and value in _DTYPES:
        return _DTYPES[value]
    if not isinstance(value, torch.dtype):
        raise ValueError(f"castor: BnbQuantizationConfig({name}={value!r}): expected a torch.dtype, or one of {', '.join(map(repr, _DTYPES))}")
    return value


@dataclasses.dataclass
class BnbQuantizationConfig:
    """Args:
        load_in_8bit, load_in_4bit: one of the two.
        llm_int8_threshold: of 8 bits: columns with larger inputs are computed in 16 bits.
        bnb_4bit_quant_type: of 4 bits: "fp4" or "nf4".
        bnb_4bit_use_double_quant: of 4 bits: the scales are quantized, too.
        bnb_4bit_compute_dtype: of 4 bits: in which products are computed.
        torch_dtype: of what is not quantized; by default float16 beside 8 bits, and bnb_4bit_compute_dtype beside 4 bits.
        skip_modules: names of modules, or ends of them, that are not quantized.
        keep_in_fp32_modules: names of modules that stay float.

    ValueError: values that exclude each other, or are none of these."""

    load_in_8bit: bool = False
    llm_int8_threshold: float = 6.0
    load_in_4bit: bool = False
    bnb_4bit_quant_type: str = "fp4"
    bnb_4bit_use_double_quant: bool = False
    bnb_4bit_compute_dtype: typing.Union[torch.dtype, str] = torch.float16
    torch_dtype: typing.Union[torch.dtype, str, None] = None
    skip_modules: typing.Optional[list] = None
    keep_in_fp32_modules: typing.Optional[list] = None

    def __post_init__(self):
        if self.load_in_8bit == self.load_in_4bit:
            raise ValueError("castor: BnbQuantizationConfig: set either load_in_8bit or load_in_4bit")
        if self.load_in_4bit and self.llm_int8_threshold != 6.0:
            raise ValueError("castor: BnbQuantizationConfig(llm_int8_threshold=...) is of load_in_8bit")
        if self.bnb_4bit_quant_type not in ("fp4", "nf4"):
            raise ValueError(f"castor: BnbQuantizationConfig(bnb_4bit_quant_type={self.bnb_4bit_quant_type!r}): expected 'fp4' or 'nf4'")
        for name in ("skip_modules", "keep_in_fp32_modules"):
            if not isinstance(getattr(self, name) or [], list):
                raise ValueError(f"castor: BnbQuantizationConfig({name}=...): expected a list of names of modules")
        self.bnb_4bit_compute_dtype = _dtype("bnb_4bit_compute_dtype", self.bnb_4bit_compute_dtype)
        if self.torch_dtype is None:
            self.torch_dtype = torch.float16 if self.load_in_8bit else self.bnb_4bit_compute_dtype
        self.torch_dtype = _dtype("torch_dtype", self.torch_dtype)
