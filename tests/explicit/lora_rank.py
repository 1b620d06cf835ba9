"""LoRA modules and quantized weights on each rank: see test_lora.py."""
import importlib.util
import os
import sys

import peft
import safetensors.torch
import torch
import torch.distributed as dist

from castor.booster import Booster
from castor.booster.plugin import GeminiPlugin
from castor.quantization import BnbQuantizationConfig
from found import end, found, launch, raised

FOLDER = sys.argv[1]
CONFIG = dict(r=4, target_modules=["0", "2"])


def build():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32))


def train(booster, model, optimizer, steps):
    losses = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(8, 32, generator=generator)[dist.get_rank()::dist.get_world_size()]
        loss = torch.nn.functional.mse_loss(model(x).float(), x)
        booster.backward(loss, optimizer)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def equal(some, others):
    return list(some) == list(others) and all(torch.equal(some[key], others[key]) for key in some)


def adapters(precision):
    booster = Booster(plugin=GeminiPlugin(precision=precision, hysteresis=1))
    base = build()
    whole = {key: value.clone() for key, value in base.state_dict().items()}
    model = booster.enable_lora(base, lora_config=peft.LoraConfig(**CONFIG))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)  # of all: those without gradients stay as they are
    model, optimizer, *_ = booster.boost(model, optimizer)
    train(booster, model, optimizer, 3)
    trained = [name for name, p in model.unwrap().named_parameters() if p.requires_grad]
    after = model.unwrap().state_dict()
    found(f"{precision}: only adapters are trained", all("lora_" in name for name in trained) and len(trained) == 4)
    found(f"{precision}: the rest is as it was", all(
        torch.equal(after[f"base_model.model.{key.replace('.', '.base_layer.')}"], value) for key, value in whole.items()))
    found(f"{precision}: states", len(optimizer.state_dict()["state"]))
    folder = os.path.join(FOLDER, precision)
    booster.save_lora_as_pretrained(model, folder, use_safetensors=True)
    dist.barrier()
    saved = safetensors.torch.load_file(os.path.join(folder, "adapter_model.safetensors"))
    found(f"{precision}: saved", [sorted({str(t.dtype) for t in saved.values()}), len(saved)])
    plain = peft.PeftModel.from_pretrained(build(), folder)
    found(f"{precision}: peft reads it", all(torch.equal(value, after[key]) for key, value in plain.state_dict().items()))
    again = booster.enable_lora(build(), pretrained_dir=folder)
    found(f"{precision}: and so does the Booster", [equal(again.state_dict(), after), sum(p.requires_grad for p in again.parameters())])
    booster.save_lora_as_pretrained(again, os.path.join(FOLDER, precision, "bin"))
    if dist.get_rank() == 0:
        found(f"{precision}: .bin", equal(torch.load(os.path.join(folder, "bin", "adapter_model.bin"), weights_only=True), saved))


def quantized():
    booster = Booster(plugin=GeminiPlugin(precision="fp32"))
    if importlib.util.find_spec("bitsandbytes") is None:
        found("without bitsandbytes", raised(ImportError, booster.enable_lora, build(), lora_config=peft.LoraConfig(**CONFIG), quantize=True))
        return
    for name, config in {"4": None, "8": BnbQuantizationConfig(load_in_8bit=True, skip_modules=["2"], torch_dtype="fp32")}.items():
        plain, model = (booster.enable_lora(build(), lora_config=peft.LoraConfig(**CONFIG), bnb_quantization_config=config, quantize=config is None)
                        for _ in range(2))
        plain.load_state_dict({key: value for key, value in model.state_dict().items() if "lora_" in key}, strict=False)
        close = (model(torch.eye(32)).float() - build()(torch.eye(32))).abs().max().item()
        kinds = [type(module).__name__ for module in model.modules() if type(module).__module__.startswith("bitsandbytes.")]
        theirs = torch.optim.AdamW(plain.parameters(), lr=0.01)
        for step in range(3):
            x = torch.randn(8, 32, generator=torch.Generator().manual_seed(step))
            torch.nn.functional.mse_loss(plain(x).float(), x).backward()
            theirs.step()
            theirs.zero_grad()
        model, optimizer, *_ = booster.boost(model, torch.optim.AdamW(model.parameters(), lr=0.01))
        train(booster, model, optimizer, 3)
        beside = [(name, p.float() - other.float()) for (name, p), other in zip(model.unwrap().named_parameters(), plain.parameters()) if "lora_" in name]
        found(f"{name} bits", [close, kinds, max(difference.abs().max().item() for _, difference in beside), len(optimizer.state_dict()["state"])])


if __name__ == "__main__":
    launch()
    for word in ("fp32", "bf16"):
        adapters(word)
    quantized()
    found("bad", [raised(ValueError, BnbQuantizationConfig), raised(ValueError, BnbQuantizationConfig, load_in_4bit=True, bnb_4bit_quant_type="int4")])
    end()
