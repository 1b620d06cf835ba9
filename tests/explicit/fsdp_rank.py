"""A rank that trains by PyTorch's DistributedDataParallel, then by TorchFSDPPlugin, and compares (test_fsdp.py)."""
import copy
import io
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts"))
import in_rank_order  # noqa: E402
from found import end, found, launch, raised  # noqa: E402
from model import GPT, Classifier, batch  # noqa: E402

STEPS, ACCUMULATED = 4, 2


class Norms(torch.nn.Module):
    """Blocks with biases and a scalar, which fully_shard does not take."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.blocks = torch.nn.Sequential(*(torch.nn.Linear(33, 33) for _ in range(3)))

    def forward(self, x):
        return self.blocks(x) * self.scale


def tokens(step, rank):
    drawn = torch.randint(0, 256, (2, 33), generator=torch.Generator().manual_seed(100 * step + rank))
    return drawn[:, :-1], drawn[:, 1:]


def build(kind):
    torch.manual_seed(3)
    if kind == "gpt":
        return GPT(context=32, layers=2, width=40)
    return Norms()


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
}


def loss_of(model, kind, step):
    if kind == "gpt":
        return model(*tokens(step, dist.get_rank()))[1]
    return model(torch.randn(5, 33, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))).square().mean()


def train(model, optimizer, kind, no_sync, clip=lambda m, o: torch.nn.utils.clip_grad_norm_(m.parameters(), 0.5)):
    """What a script sees, step by step."""
    seen = []
    for step in range(STEPS):
        with no_sync():
            loss = loss_of(model, kind, 2 * step) / ACCUMULATED
            loss.backward()
        seen.append(("local gradients", [p.grad.clone() for p in model.parameters()]))
        (loss_of(model, kind, 2 * step + 1) / ACCUMULATED).backward()
        seen.append(("loss", loss.detach()))
        seen.append(("norm", clip(model, optimizer)))
        seen.append(("gradients", [p.grad.clone() for p in model.parameters()]))
        optimizer.step()
        optimizer.zero_grad()
        seen.append(("parameters", [p.detach().clone() for p in model.parameters()]))
    return seen


def states_of(optimizer):
    return {f"{at}.{name}": value for at, state in optimizer.state_dict()["state"].items() for name, value in state.items()}


def largest(a, b):
    """The largest difference of two like structures."""
    if isinstance(a, dict):
        assert list(a) == list(b), (list(a), list(b))
        return max((largest(a[k], b[k]) for k in a), default=0.0)
    if isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        return max((largest(x, y) for x, y in zip(a, b)), default=0.0)
    if isinstance(a, torch.Tensor):
        assert type(b) in (torch.Tensor, torch.nn.Parameter) and a.shape == b.shape and a.dtype == b.dtype, (a.shape, type(b), b.shape)
        return (a.double() - b.double()).abs().max().item() if a.numel() else 0.0
    assert a == b, (a, b)
    return 0.0


def plain(kind, name):
    module = build(kind)
    model = DistributedDataParallel(module)
    if dist.get_world_size() > 2:
        model.register_comm_hook(None, in_rank_order.mean)
    optimizer = OPTIMIZERS[name](model.parameters())
    seen = train(model, optimizer, kind, model.no_sync)
    return seen, {k: v.clone() for k, v in model.state_dict().items()}, copy.deepcopy(optimizer.state_dict())


def alone_on_rank_0(act):
    """Rank 0 acts; the others are in no collective meanwhile, and wait for its end at PyTorch's store. Returns what it gave, its seconds."""
    store, gave, seconds = dist.distributed_c10d._get_default_store(), None, 0.0
    alone_on_rank_0.count += 1
    if dist.get_rank() == 0:
        began = time.monotonic()
        gave = act()
        seconds = time.monotonic() - began
        store.set(f"alone {alone_on_rank_0.count}", "over")
    else:
        store.wait([f"alone {alone_on_rank_0.count}"])
    return gave, seconds


alone_on_rank_0.count = 0


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rows = [("gpt", "adamw_fused"), ("norms", "sgd")]
    references = {row: plain(*row) for row in rows}

    from torch.distributed.fsdp import MixedPrecisionPolicy, ShardingStrategy

    from castor.booster import Booster
    from castor.booster.plugin import TorchFSDPPlugin

    found("no_shard", raised(ValueError, TorchFSDPPlugin, sharding_strategy=ShardingStrategy.NO_SHARD))
    found("unknown", raised(TypeError, TorchFSDPPlugin, shards=3))
    found("precision", raised(ValueError, TorchFSDPPlugin, mixed_precision="fp4"))
    found("type", raised(ValueError, Booster(plugin=TorchFSDPPlugin(mixed_precision=MixedPrecisionPolicy(param_dtype=torch.float64))).boost, build("norms")))
    booster = Booster(plugin=TorchFSDPPlugin(auto_wrap_policy=lambda **_: False))

    differences = {}
    for row in rows:
        kind, name = row
        module = build(kind)
        optimizer = OPTIMIZERS[name](module.parameters())
        model, optimizer, *_ = booster.boost(module, optimizer)
        seen = train(model, optimizer, kind, lambda m=model: booster.no_sync(m), lambda m, o: o.clip_grad_by_norm(0.5))
        expected, weights, states = references[row]
        here = dict(seen=largest([v for _, v in expected], [v for _, v in seen]), weights=largest(weights, model.module.state_dict()),
                    states=largest(states, optimizer.state_dict()))
        differences[" ".join(map(str, row))] = here
        if row == rows[0]:
            whole(booster, model, optimizer, kind, here, weights, states)
    found("differences", differences)
    ignored(Booster(plugin=TorchFSDPPlugin(ignored_modules=[kept := torch.nn.Linear(4, 4)])), kept)
    end()


def whole(booster, model, optimizer, kind, here, weights, states):
    """What one rank does without the others."""

    def act():
        saved = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
        with torch.no_grad():
            model.eval()
            loss = loss_of(model.unwrap(), kind, 50)
            model.train()
        ema = copy.deepcopy(model.unwrap())
        pickled = io.BytesIO()
        torch.save(ema, pickled)
        return saved.getvalue(), float(loss), float(loss_of(ema, kind, 50).detach()), float(sum(p.detach().norm() for p in model.parameters()))

    gave, seconds = alone_on_rank_0(act)
    found("alone_seconds", seconds)
    if dist.get_rank() == 0:
        loaded = torch.load(io.BytesIO(gave[0]), weights_only=True)
        plain_names = {k.removeprefix("module.").removeprefix("module."): v for k, v in loaded["model"].items()}
        here["saved"] = max(largest({k.removeprefix("module."): v for k, v in weights.items()}, plain_names), largest(states, loaded["optimizer"]))
        again = build(kind)
        again.load_state_dict(plain_names)
        found("alone_losses", [gave[1], gave[2], float(loss_of(again, kind, 50).detach())])
    optimizer.load_state_dict(copy.deepcopy(states))
    model.load_state_dict(model.state_dict())
    checkpoints(booster, model, optimizer, kind)
    loss_of(model, kind, 60).backward()
    optimizer.step()


def ignored(booster, kept):
    """Its parameters stay each rank's own, and so do their gradients."""
    rank = dist.get_rank()
    torch.nn.init.constant_(kept.weight, float(rank))
    model, *_ = booster.boost(torch.nn.Sequential(torch.nn.Linear(4, 4), kept))
    model(torch.full((2, 4), 1.0 + rank)).sum().backward()
    shared = model.unwrap()[0].weight.grad
    every = [torch.empty_like(shared) for _ in range(dist.get_world_size())]
    dist.all_gather(every, shared)
    found("ignored", [kept.weight[0].tolist(), kept.bias.grad.tolist(), all(torch.equal(every[0], other) for other in every)])


def checkpoints(booster, model, optimizer, kind):
    """Saved by the Booster, in one file and in shards; loaded into a model that nobody boosted, and back."""
    folder = os.path.join(os.environ["EXPLICIT_TEST_FOUND"], "saved")
    for shard in (False, True):
        booster.save_model(model, f"{folder}-model-{shard}", shard=shard, size_per_shard=1, use_safetensors=True)
        booster.save_optimizer(optimizer, f"{folder}-optimizer-{shard}", shard=shard, size_per_shard=1)
        dist.barrier()
        again = build(kind)
        booster.load_model(again, f"{folder}-model-{shard}")
        found(f"loaded_{shard}", largest({k.split("module.")[-1]: v for k, v in model.state_dict().items()}, again.state_dict()))
        before = copy.deepcopy(optimizer.state_dict())
        booster.load_model(model, f"{folder}-model-{shard}")
        booster.load_optimizer(optimizer, f"{folder}-optimizer-{shard}")
        found(f"states_{shard}", largest(before["state"], optimizer.state_dict()["state"]))
        dist.barrier()


if __name__ == "__main__":
    main()
