"""TorchFSDPPlugin on (simulated) devices, over NCCL, beside DistributedDataParallel of the same model: see test_fsdp_devices.py."""
import gc
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffload, ShardingStrategy
from torch.nn.parallel import DistributedDataParallel

from castor.booster import Booster
from castor.booster.plugin import TorchFSDPPlugin
from castor.nn import optimizer as optimizers
from found import end, found, raised

STEPS = 4


class Model(torch.nn.Module):
    """Blocks with biases and buffers, and what fully_shard does not take: a scalar, one of another type, one that has gaps."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.wide = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.gaps = torch.nn.Parameter(torch.arange(32.0).view(4, 8).t())
        self.norm = torch.nn.BatchNorm1d(33)
        self.blocks = torch.nn.Sequential(*(torch.nn.Linear(33, 33) for _ in range(3)))
        self.later = torch.nn.Parameter(torch.tensor(0.5), requires_grad=False)  # unfrozen in the middle

    def forward(self, x):
        return self.blocks(self.norm(x)) * self.scale * self.wide.sum().float() + self.gaps.mean() * self.later


def build():
    torch.manual_seed(3)
    return Model()


KINDS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1),
    "fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "hybrid_adam": lambda p: optimizers.HybridAdam(p, lr=1e-3),
    "lamb": lambda p: optimizers.Lamb(p, lr=1e-3),
    "fused_lamb": lambda p: optimizers.FusedLAMB(p, lr=1e-3),
    "lars": lambda p: optimizers.Lars(p, lr=1e-3, momentum=0.9),
}


def whole(t):
    t = t.detach()
    return (t.to(t.device_mesh.device_type).full_tensor() if hasattr(t, "full_tensor") else t).cpu().double()


def train(model, optimizer, device, backward, no_sync, clip):
    seen = []
    parameters = dict((n.removeprefix("module."), p) for n, p in model.named_parameters())
    for step in range(STEPS):
        if step == 2:
            parameters["later"].requires_grad_()
        for micro in range(2):
            x = torch.randn(5, 33, generator=torch.Generator().manual_seed(100 * step + 10 * micro + dist.get_rank())).to(device)
            if micro == 0:
                with no_sync():
                    backward(model(x).square().mean() / 2)
            else:
                loss = model(x).square().mean() / 2
                backward(loss)
        seen += [loss.detach().cpu(), torch.as_tensor(float(clip(optimizer, step)))]
        optimizer.step()
        optimizer.zero_grad()
    return [t.double() for t in seen], {n.removeprefix("module."): whole(t) for n, t in model.state_dict().items()}


def clip_plain(model):
    def clip(optimizer, step):
        if step == 3:
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
            return 0.0
        return torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    return clip


def clip_boosted(optimizer, step):
    if step == 3:
        optimizer.clip_grad_by_value(0.01)
        return 0.0
    before = optimizer.get_grad_norm()
    norm = optimizer.clip_grad_by_norm(0.5)
    assert abs(before - float(norm)) < 1e-5 * before and optimizer.get_grad_norm() == float(norm), (before, norm)
    return norm


def states(optimizer, parameters):
    return [(sorted(optimizer.state[p]), [whole(t) for _, t in sorted(optimizer.state[p].items()) if isinstance(t, torch.Tensor)]) for p in parameters]




def compare(device, plugin, kinds):
    """The largest differences to DistributedDataParallel, relative above 1: of losses and norms, and of values and states, by optimizer."""
    differences = {}
    for kind in kinds:
        model = build().to(device)
        model.later.requires_grad_()
        model = DistributedDataParallel(model, device_ids=[device], find_unused_parameters=True)
        model.module.later.requires_grad_(False)
        optimizer = KINDS[kind](model.parameters())
        expected = train(model, optimizer, device, torch.Tensor.backward, model.no_sync, clip_plain(model))
        expected_states = states(optimizer, model.parameters())
        booster = Booster(plugin=plugin)
        module = build()
        model, optimizer, *_ = booster.boost(module, KINDS[kind](module.parameters()))
        got = train(model, optimizer, device, lambda loss: booster.backward(loss, optimizer), lambda: booster.no_sync(model), clip_boosted)
        assert list(got[1]) == list(expected[1]), (list(got[1]), list(expected[1]))
        got_states = states(optimizer, model.parameters())
        assert [names for names, _ in got_states] == [names for names, _ in expected_states], (got_states, expected_states)
        pairs = [*zip(got[0], expected[0]), *((got[1][n], t) for n, t in expected[1].items()),
                 *((a, b) for (_, one), (_, other) in zip(got_states, expected_states) for a, b in zip(one, other))]
        differences[kind] = max(float(((a - b).abs() / b.abs().clamp(min=1)).max()) for a, b in pairs)
    return differences


def main():
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    device = torch.device("cuda", local)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    numbers(device, sys.argv[1:])
    if dist.get_world_size() == 2:
        checkpoints(device)
        ignored(device)
        memory(device)
    end()


def numbers(device, kinds):
    """`LOCAL_WORLD_SIZE` is 2: with four ranks HYBRID_SHARD has two replicas."""
    plugins = {"whole": {}, "kept": {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}, "replicas": {"sharding_strategy": ShardingStrategy.HYBRID_SHARD},
               "offloaded": {"cpu_offload": CPUOffload(offload_params=True)}}
    found("differences", {name: compare(device, TorchFSDPPlugin(**given), kinds if name == "whole" else kinds[:1]) for name, given in plugins.items()})


def train_on(booster, model, optimizer, device, first):
    for step in range(first, first + 2):
        x = torch.randn(5, 33, generator=torch.Generator().manual_seed(step + 50 * dist.get_rank())).to(device)
        booster.backward(model(x).square().mean(), optimizer)
        optimizer.step()
        optimizer.zero_grad()


def values(model, optimizer):
    """Of parameters and states; buffers are rank 0's only while the model trains."""
    return [*map(whole, model.parameters()), *(t for _, of in states(optimizer, model.parameters()) for t in of)]


def checkpoints(device):
    """What was saved is loaded into a model that nobody boosted, and into one that trains on; and one rank that saves alone."""
    folder, plugin = os.path.join(os.environ["EXPLICIT_TEST_FOUND"], "saved"), TorchFSDPPlugin()
    booster = Booster(plugin=plugin)
    module = build()
    model, optimizer, *_ = booster.boost(module, KINDS["adamw"](module.parameters()))
    train_on(booster, model, optimizer, device, 0)
    expected, wrong = values(model, optimizer), []
    for case in ("file", "shards", "background", "parts"):
        shard = case == "shards"
        booster.save_model(model, f"{folder}-{case}-model{'' if shard else '.safetensors'}", shard=shard, size_per_shard=1, use_safetensors=True,
                           use_async=case == "background", gather_dtensor=case != "parts")
        booster.save_optimizer(optimizer, f"{folder}-{case}-optimizer{'' if shard else '.bin'}", shard=shard, size_per_shard=1,
                               use_async=case == "background", gather_dtensor=case != "parts")
    train_on(booster, model, optimizer, device, 2)
    later = values(model, optimizer)
    for case in ("file", "shards", "background", "parts"):
        shard = case == "shards"
        paths = f"{folder}-{case}-model{'' if shard else '.safetensors'}", f"{folder}-{case}-optimizer{'' if shard else '.bin'}"
        if case == "background":
            booster.checkpoint_io.synchronize()
        booster.load_model(model, paths[0])
        booster.load_optimizer(optimizer, paths[1])
        wrong += [case] * (not all(map(torch.equal, values(model, optimizer), expected)))
        train_on(booster, model, optimizer, device, 2)
        wrong += [f"{case}, trained on"] * (not all(map(torch.equal, values(model, optimizer), later)))
        if case != "parts":
            other = build()
            plain = KINDS["adamw"](other.parameters())
            booster.load_model(other, paths[0])
            booster.load_optimizer(plain, paths[1])
            wrong += [f"{case}, not boosted"] * (not all(map(torch.equal, values(other, plain), expected)))
    found("wrong", wrong)
    store, began = dist.distributed_c10d._get_default_store(), time.monotonic()
    if dist.get_rank() == 0:
        found("alone", raised(RuntimeError, booster.save_model, model, f"{folder}-alone.bin"))
        store.set("alone", "over")
    store.wait(["alone"])
    found("alone_seconds", time.monotonic() - began)
    found("left", sorted(name for name in os.listdir(os.path.dirname(folder)) if "alone" in name or "castor-" in name))
    booster.save_model(model, f"{folder}-together.bin")
    found("twice", raised(ValueError, booster.boost, model))
    found("without_gloo", raised(ValueError, TorchFSDPPlugin, process_group=dist.new_group(backend="nccl"), cpu_offload=True))
    differing = torch.nn.Linear(4, 4 + dist.get_rank())
    found("differs", raised(ValueError, booster.boost, differing))


def ignored(device):
    """A module that stays each rank's own: values, gradients and buffers."""
    rank, module = dist.get_rank(), torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    torch.nn.init.constant_(module[1].bias, rank)
    plugin = TorchFSDPPlugin(ignored_modules=[module[1]])
    model, *_ = Booster(plugin=plugin).boost(module)
    for _ in range(2):
        model(torch.full((2, 4), 1.0 + rank, device=device)).mul(1.0 + rank).sum().backward()
    linear, norm = model.unwrap()
    row = (whole(linear.weight).sum(1) * (1.0 + rank) + whole(linear.bias)) * 0.19  # two batches of equal rows, with a momentum of 0.1
    found("ignored", [norm.bias.tolist(), norm.bias.grad.tolist(), torch.allclose(norm.running_mean.cpu().double(), row, atol=1e-5)])


def memory(device):
    """A model whose parameters, gradients and two states a device does not hold. None of them is ever whole on one, but for a block."""

    def made():
        torch.manual_seed(1)
        module = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(12)), torch.nn.Linear(1024, 1))
        return module, torch.optim.AdamW(module.parameters())

    def train_it(model, optimizer):
        for _ in range(2):
            model(torch.ones(1, 1024, device=device)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    def plainly():
        module, optimizer = made()
        train_it(DistributedDataParallel(module.to(device), device_ids=[device]), optimizer)

    found("plain", raised(torch.OutOfMemoryError, plainly))
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model, optimizer, *_ = Booster(plugin=TorchFSDPPlugin()).boost(*made())
    held = torch.cuda.memory_allocated() - before
    train_it(model, optimizer)
    found("memory", [sum(p.numel() * 4 for p in model.parameters()), held, torch.cuda.max_memory_allocated() - before])


if __name__ == "__main__":
    main()
