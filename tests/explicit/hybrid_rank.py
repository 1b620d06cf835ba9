"""HybridParallelPlugin beside plain PyTorch, on several layouts of the same ranks: see test_hybrid.py.

    hybrid_rank.py {"model, optimizer, more words": {"tp": 1, "pp": 1, a parameter of the plugin: its value}}"""
import copy
import json
import os
import shutil
import sys
import tempfile

import safetensors.torch
import torch
import torch.distributed as dist
from found import end, found, launch
from hybrid_models import MODELS, OPTIMIZERS, call, own_loss, part

BATCH, STEPS = 8, 3
# Divided layers add in another order: some roundings, of the size of the largest numbers that are added. Adam makes steps of equal size of gradients
# of any size, also of those that are nothing but rounding (an attention's bias of keys): so it is compared in double precision.
NEAR = {torch.float64: {"rtol": 1e-9, "atol": 1e-11}, torch.float32: {"rtol": 1e-5, "atol": 2e-6}}
IN_FLOAT = {"rtol": 1e-6, "atol": 1e-8}  # double precision with normalizations that transformers computes in float
IN_16_BITS = {"rtol": 0.02, "atol": 2e-3}  # beside plain PyTorch in float: a step is ten times as large
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
wrong, compared = [], 0


def same(name, got, expected, near=None):
    global compared
    compared += 1
    if got is None or expected is None:
        if (got is None) != (expected is None):
            wrong.append(f"{name}: {'none' if got is None else 'some'} instead of {'none' if expected is None else 'some'}")
        return
    near = near or (IN_FLOAT if name.startswith(("llama", "qwen3", "t5")) and got.dtype is torch.float64 else None) or NEAR[got.dtype if got.is_floating_point() else torch.float64]
    expected = expected.to(got.device)
    got, expected = got.detach().double(), expected.detach().double()
    if got.shape != expected.shape or not torch.allclose(got, expected, **near):
        error = (got - expected).abs().max().item() if got.shape == expected.shape else "shape"
        wrong.append(f"{name}: off by {error}, of {expected.abs().max().item()}")


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def mean_of_replicas(plugin, loss, dtype):
    """The last stages' losses, on every rank."""
    last = plugin.stage_manager is None or plugin.stage_manager.is_last_stage()
    total = torch.tensor([loss.item() if last else 0.0, float(last)], dtype=torch.float64, device=DEVICE)
    dist.all_reduce(total)
    return (total[0] / total[1]).to(dtype)


def on_device(batch):
    return torch.utils._pytree.tree_map(lambda t: t.to(DEVICE), batch)


def plugin_of(tp, pp, **more):
    from castor.booster.plugin import HybridParallelPlugin

    return HybridParallelPlugin(tp, pp, **{"precision": "fp32", "num_microbatches": 2, **more})


def train(plugin, booster, model, optimizer, batch, loss_of, dtype):
    """(loss, outputs) of this rank."""
    own = part(batch, plugin._data_rank(), plugin.dp_size, dtype)
    if plugin.pp_size > 1:
        result = booster.execute_pipeline(iter([own]), model, loss_of, optimizer, return_loss=True, return_outputs=True)
        return result["loss"], result["outputs"]
    outputs = call(model, own)
    loss = loss_of(outputs, own)
    booster.backward(loss, optimizer)
    return loss, outputs


def beside_plain(case, tp, pp, name, optimizer, clip=0.0, accumulate=1, dtype="float64", near=None, lora=False, checkpointing=False, **more):
    from castor.booster import Booster

    make, make_batch, loss_of = MODELS[name]
    dtype = getattr(torch, dtype)
    if dtype is torch.float32 and loss_of.__name__ == "_of_logits":
        loss_of = own_loss
    torch.manual_seed(11)
    model = make().to(DEVICE, dtype)
    if lora:
        import peft

        model = Booster(plugin=plugin_of(1, 1)).enable_lora(model, lora_config=peft.LoraConfig(r=4, lora_dropout=0.0, init_lora_weights=False))
    plain = copy.deepcopy(model)
    if dist.get_rank():
        with torch.no_grad():
            for p in model.parameters():
                p.add_(1.0)  # rank 0's values count
    reference, own = OPTIMIZERS[optimizer](plain.parameters()), OPTIMIZERS[optimizer](model.parameters())
    if more.get("precision", "fp32") != "fp32":
        near = near or IN_16_BITS
    schedules = [torch.optim.lr_scheduler.StepLR(one, 1, 0.5) for one in (reference, own)]
    plugin = plugin_of(tp, pp, **more)
    booster = Booster(plugin=plugin)
    model, own, loss_of, _, scheduler = booster.boost(model, own, loss_of, lr_scheduler=schedules[1])
    plain.train()
    model.train()
    if checkpointing:
        model.unwrap().gradient_checkpointing_enable()
    generator, kept = torch.Generator().manual_seed(5), {}
    for step in range(STEPS):
        for micro in range(accumulate):
            batch = on_device(part(make_batch(generator, BATCH), 0, 1, dtype))
            expected = loss_of(call(plain, batch), batch)
            expected.backward()
            with booster.no_sync(model, own) if micro < accumulate - 1 and step else torch.enable_grad():
                loss, outputs = train(plugin, booster, model, own, batch, loss_of, dtype)
            same(f"{case}: loss {step}", mean_of_replicas(plugin, loss, dtype), expected, near)
        if plugin.zero_stage < 2 and plugin.precision == "fp32":
            for of, p in model.module.named_parameters():
                same(f"{case}: gradient of {of} {step}", None if p.grad is None else whole(p.grad), plain.get_parameter(of).grad)
        if clip:
            same(f"{case}: norm {step}", own.clip_grad_by_norm(clip), torch.nn.utils.clip_grad_norm_(plain.parameters(), clip), near)
        own.step()
        reference.step()
        scheduler.step()
        schedules[0].step()
        for of, p in model.module.named_parameters():
            same(f"{case}: {of} {step}", whole(p).to(dtype), plain.get_parameter(of), near)
        own.zero_grad()
        reference.zero_grad()
    same(f"{case}: rate", torch.tensor(own.param_groups[0]["lr"]), torch.tensor(reference.param_groups[0]["lr"]))
    if lora:
        saved = folder_of_all()
        booster.save_lora_as_pretrained(model, saved, use_safetensors=True)
        dist.barrier()
        loaded = {f"base_model.model.{name}": t for name, t in safetensors.torch.load_file(os.path.join(saved, "adapter_model.safetensors")).items()}
        expected = {name.replace(".default.", "."): p for name, p in plain.named_parameters() if "lora_" in name}
        same(f"{case}: saved adapters", torch.tensor(len(loaded)), torch.tensor(len(expected)))
        for name, value in loaded.items():
            same(f"{case}: saved {name}", value, expected[name.removeprefix("base_model.model.")])
    return booster, plugin, model, own, plain, reference


def folder_of_all():
    """One for all ranks, with a name that they agree on."""
    name = [tempfile.mkdtemp(prefix="castor-hybrid-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(name)
    return name[0]


def resumed(case, tp, pp, name, optimizer, layouts=(), shard=False, parts=False, dtype="float64", **more):
    """Trains, saves, and goes on from the files: in plain PyTorch, and in each of `layouts`: {a parameter of the plugin: its value}."""
    from castor.booster import Booster

    near = None if more.get("precision", "fp32") == "fp32" else IN_16_BITS
    booster, plugin, model, own, plain, reference = beside_plain(case, tp, pp, name, optimizer, dtype=dtype, near=near, **more)
    make, make_batch, loss_of = MODELS[name]
    dtype, folder = getattr(torch, dtype), folder_of_all()
    of_model, of_optimizer = (os.path.join(folder, one) for one in (("model", "optimizer") if shard else ("model.bin", "optimizer.bin")))
    booster.save_model(model, of_model, shard=shard, size_per_shard=0.01, gather_dtensor=not parts)
    booster.save_optimizer(own, of_optimizer, shard=shard, size_per_shard=0.01, gather_dtensor=not parts)
    batch = on_device(part(make_batch(torch.Generator().manual_seed(6), BATCH), 0, 1, dtype))
    loss_of(call(plain, batch), batch).backward()
    reference.step()
    if not parts:
        again, other = fresh(make, dtype, optimizer)
        booster.load_model(again, of_model)
        booster.load_optimizer(other, of_optimizer)
        loss_of(call(again, batch), batch).backward()
        other.step()
        for of, p in again.named_parameters():
            same(f"{case}: {of}, plain PyTorch goes on", p, plain.get_parameter(of), near)
    for number, layout in enumerate(layouts):
        layout = dict(layout)
        into = plugin_of(layout.pop("tp", 1), layout.pop("pp", 1), **layout)
        booster = Booster(plugin=into)
        again, other = fresh(make, dtype, optimizer)
        again, other, *_ = booster.boost(again, other)
        booster.load_model(again, of_model)
        booster.load_optimizer(other, of_optimizer)
        train(into, booster, again, other, batch, loss_of, dtype)
        other.step()
        for of, p in again.module.named_parameters():
            same(f"{case}: {of}, goes on in layout {number}", whole(p).to(dtype), plain.get_parameter(of), near)
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder)


def fresh(make, dtype, optimizer):
    torch.manual_seed(12)
    model = make().to(DEVICE, dtype)
    return model, OPTIMIZERS[optimizer](model.parameters())


def main():
    import castor

    launch()
    for case, more in json.loads(sys.argv[1]).items():
        name, optimizer = case.split(",")[:2]
        try:
            (resumed if "layouts" in more else beside_plain)(case, more.pop("tp", 1), more.pop("pp", 1), name, optimizer.strip(), **more)
        except Exception as error:
            import traceback
            traceback.print_exc()
            wrong.append(f"{case}: {type(error).__name__}: {error}")
            break
    found("wrong", wrong)
    found("compared", compared)
    end()


main()
