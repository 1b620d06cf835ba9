"""Replaces Linear modules by bitsandbytes' quantized ones (Colossal-AI: colossalai.quantization.bnb)."""
import torch

from ..accelerator import get_accelerator

__all__ = ["quantize_model"]


def quantize_model(model, config):
    """Quantizes the weights of the Linear modules of `model`, in place, and returns it. They cannot be trained any more.

    Left as they are: modules that the configuration names, and modules whose weight another module has, too (an output layer that is tied
    to the embedding). Other floats become config.torch_dtype. ImportError: there is no bitsandbytes."""
    try:
        import bitsandbytes
    except ImportError:
        raise ImportError("castor: quantization needs the library bitsandbytes, which is not installed: pip install bitsandbytes, or leave "
                          "`quantize` and `bnb_quantization_config` out") from None
    users = {}
    for module in model.modules():
        for p in module._parameters.values():
            users[id(p)] = users.get(id(p), 0) + 1
    kept = tuple(config.keep_in_fp32_modules or ())
    skipped = tuple(config.skip_modules or ()) + kept
    device = get_accelerator().get_current_device()
    linears = {name: module for name, module in model.named_modules()
               if type(module) is torch.nn.Linear and users[id(module.weight)] == 1 and not _is_named(name, skipped)}
    for name, module in model.named_modules():
        if name not in linears and not _is_named(name, kept):
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if tensor is not None and tensor.is_floating_point():
                    tensor.data = tensor.data.to(config.torch_dtype)
    for name, linear in linears.items():
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, _quantized(bitsandbytes, linear, config).to(device))
    return model


def _is_named(name, names):
    return any(name == each or name.endswith("." + each) for each in names)


def _quantized(bitsandbytes, linear, config):
    has_bias = linear.bias is not None
    if config.load_in_4bit:
        made = bitsandbytes.nn.Linear4bit(linear.in_features, linear.out_features, has_bias, compute_dtype=config.bnb_4bit_compute_dtype,
                                          compress_statistics=config.bnb_4bit_use_double_quant, quant_type=config.bnb_4bit_quant_type, device="meta")
        made.weight = bitsandbytes.nn.Params4bit(linear.weight.data, requires_grad=False, quant_type=config.bnb_4bit_quant_type,
                                                 compress_statistics=config.bnb_4bit_use_double_quant)
    else:
        made = bitsandbytes.nn.Linear8bitLt(linear.in_features, linear.out_features, has_bias, has_fp16_weights=False,
                                            threshold=config.llm_int8_threshold, device="meta")
        made.weight = bitsandbytes.nn.Int8Params(linear.weight.data, requires_grad=False, has_fp16_weights=False)
    if has_bias:
        made.bias = torch.nn.Parameter(linear.bias.data.to(config.torch_dtype), requires_grad=False)
    return made
