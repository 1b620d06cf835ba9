"""Checkpoints of one process: each format back to the bit, and read by plain PyTorch and safetensors' tools."""
import itertools
import os
import shutil
import tempfile

import torch
from torch import nn

from castor.booster import Booster
from castor.checkpoint_io import CheckpointIndexFile, GeneralCheckpointIO
from castor.interface import ModelWrapper, OptimizerWrapper
from checkpoint_models import Mixed, bits, equal
from found import found, raised

folder = tempfile.mkdtemp(prefix="castor-formats-")
disk = GeneralCheckpointIO()


def at(*names):
    return os.path.join(folder, *map(str, names))


# ---- each format, with each prefix, in the background or not; twice into the same place
wrong, listed = [], {}
for safe, shard, prefix, background in itertools.product((False, True), (False, True), (None, "model."), (False, True)):
    path = at("formats", f"{safe}-{shard}-{prefix}-{background}" + ("" if shard else ".safetensors" if safe else ".bin"))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    for seed in (1, 2, 3):
        saved, loaded = Mixed(seed), Mixed(9)
        disk.save_model(saved, path, shard=shard, prefix=prefix, size_per_shard=0.004, use_safetensors=safe, use_async=background)
        if background:
            before = {n: t.clone() for n, t in saved.state_dict().items()}
            with torch.no_grad():
                for n, t in saved.state_dict().items():
                    (t[:1] if n == "expanded" else t).zero_()  # what is saved is the state of the call
            saved = before
            disk._sync_d2h()
            disk._sync_io()  # the original's names of synchronize()
        if disk.load_model(loaded, path) is not loaded or not equal(saved, loaded) or loaded.last.weight is not loaded.first.weight:
            wrong.append([safe, shard, prefix, background, seed])
    if shard and not prefix and not background:
        listed[f"safetensors {safe}"] = sorted(os.listdir(path))
found("formats", wrong)
found("names after the third save", listed)
index = CheckpointIndexFile.from_file(at("formats", "True-True-None-False", "model.safetensors.index.json"))
found("total size", [index.metadata["total_size"], sum(t.nbytes for n, t in Mixed(3).state_dict().items() if n != "last.weight")])
found("tied in the index", [index.metadata["last.weight"], "last.weight" in index.weight_map])
largest = max(os.path.getsize(f) for f in index.get_checkpoint_filenames())
found("shards are small", largest < 0.004 * (1 << 20) + 4096)
found("several shards", len(index.get_checkpoint_filenames()))

# ---- what others read
plain = Mixed(9)
plain.load_state_dict(torch.load(at("formats", "False-False-None-False.bin")))
found("torch.load of one file", equal(plain, Mixed(3)))
parts = {}
for name in sorted(os.listdir(at("formats", "False-True-None-False"))):
    if name.endswith(".bin"):
        parts.update(torch.load(at("formats", "False-True-None-False", name)))
plain = Mixed(9)
plain.load_state_dict(parts)
found("torch.load of shards", equal(plain, Mixed(3)))

import safetensors.torch  # noqa: E402 - Castor's own reading and writing need it not

opened = safetensors.torch.load_file(at("formats", "True-False-None-False.safetensors"))
found("safetensors.load_file", all(bits(t) == bits(Mixed(3).state_dict()[n]) for n, t in opened.items()) and len(opened) == len(Mixed(3).state_dict()) - 1)
plain = Mixed(9)
safetensors.torch.load_model(plain, at("formats", "True-False-None-False.safetensors"))
found("safetensors.load_model", equal(plain, Mixed(3)))
safetensors.torch.save_model(Mixed(4), at("theirs.safetensors"))
plain = Mixed(9)
disk.load_model(plain, at("theirs.safetensors"))
found("of safetensors.save_model", equal(plain, Mixed(4)))


# ---- extra state, versions, models of nothing, wrappers
class Extra(nn.Linear):
    def __init__(self, value=None):
        super().__init__(2, 2)
        self.value = value

    def get_extra_state(self):
        return {"value": self.value}

    def set_extra_state(self, state):
        self.value = state["value"]


extra = Extra([1, "two"])
for shard in (False, True):
    disk.save_model(extra, at(f"extra{shard}"), shard=shard)
    other = Extra()
    disk.load_model(other, at(f"extra{shard}"))
    found(f"extra state, {shard}", [other.value, torch.equal(extra.weight, other.weight)])
found("extra state in safetensors", raised(RuntimeError, disk.save_model, extra, at("extra.safetensors"), use_safetensors=True))


class Versioned(nn.Linear):
    _version = 3
    seen = None

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
        self.seen = local_metadata.get("version")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


versions = []
for safe, shard, prefix in itertools.product((False, True), (False, True), (None, "p.")):
    model = nn.Sequential(Versioned(2, 2))
    disk.save_model(model, at(f"versions{safe}{shard}{prefix}"), shard=shard, use_safetensors=safe, prefix=prefix)
    disk.load_model(model, at(f"versions{safe}{shard}{prefix}"))
    versions.append(model[0].seen)
found("versions", versions)
nothing = nn.Sequential(nn.ReLU())
for safe, shard in itertools.product((False, True), (False, True)):
    disk.save_model(nothing, at(f"nothing{safe}{shard}"), shard=shard, use_safetensors=safe)
    disk.load_model(nothing, at(f"nothing{safe}{shard}"))
disk.save_optimizer(torch.optim.SGD([torch.ones(1)], lr=1.0), at("no states"), shard=True)
disk.load_optimizer(torch.optim.SGD([torch.ones(1)], lr=2.0), at("no states"))
wrapped = ModelWrapper(nn.parallel.DataParallel(nn.Linear(2, 2)).module)
disk.save_model(wrapped, at("wrapped"))
found("wrapped", sorted(torch.load(at("wrapped"))))
compiled = torch.compile(nn.Linear(2, 2))
disk.save_model(compiled, at("compiled"))
found("compiled", sorted(torch.load(at("compiled"))))

# ---- strict
short = nn.Sequential(nn.Linear(24, 40))
longer = nn.Sequential(nn.Linear(24, 40), nn.Linear(2, 2))
disk.save_model(short, at("short"))
disk.save_model(longer, at("longer"))
found("strict", [raised(RuntimeError, disk.load_model, longer, at("short")).replace(folder, ""),
                 raised(RuntimeError, disk.load_model, short, at("longer")).replace(folder, "")])
disk.load_model(longer, at("short"), strict=False)
found("not strict", torch.equal(longer[0].weight, short[0].weight))
found("not strict, nothing fits", raised(RuntimeError, disk.load_model, nn.Sequential(nn.ReLU(), nn.Linear(24, 40)), at("short"), strict=False).replace(folder, ""))
found("half precision", [str(t.dtype) for t in [disk.load_model(nn.Linear(2, 2).half(), at("wrapped")).weight]])
found("meta", raised(RuntimeError, disk.load_model, nn.Linear(2, 2, device="meta"), at("wrapped")).replace(folder, ""))
found("saved meta", raised(RuntimeError, disk.save_model, nn.Linear(2, 2, device="meta"), at("meta")))

# ---- arguments
found("arguments", [
    raised(ValueError, disk.save_model, short, at("a.safetensors")).replace(folder, ""),
    raised(ValueError, disk.save_model, short, at("a.bin"), use_safetensors=True).replace(folder, ""),
    raised(ValueError, disk.save_model, short, at("a"), shard=True, size_per_shard=0), raised(TypeError, disk.save_model, short, at("a"), prefix=3),
    raised(RuntimeError, disk.save_model, short, at("short"), shard=True).replace(folder, ""), raised(TypeError, disk.save_model, 3, at("a")),
    raised(OSError, disk.save_model, short, at("no", "folder")).replace(folder, ""),
])

# ---- optimizers and schedulers
BATCH = torch.randn(8, 24)


def trained(steps, kind, model=None, optimizer=None, scheduler=None, **options):
    model = model or Mixed(1)
    optimizer = optimizer or kind([{"params": [model.first.weight]}, {"params": [model.first.bias, *model.norm.parameters()], "lr": 0.01}], **options)
    scheduler = scheduler or torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20, cycle_momentum=kind is not torch.optim.Adagrad)
    for _ in range(steps):
        optimizer.zero_grad()
        model.norm(model.first(BATCH)).relu().pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
    return model, optimizer, scheduler


resumed, optimizers_listed = {}, {}
for kind, options in ((torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}), (torch.optim.AdamW, {"lr": 0.1}), (torch.optim.Adagrad, {"lr": 0.1})):
    expected = trained(6, kind, **options)
    for shard, background in itertools.product((False, True), (False, True)):
        model, optimizer, scheduler = trained(3, kind, **options)
        place = at(f"resume-{kind.__name__}-{shard}-{background}")
        os.makedirs(place)
        booster = Booster()
        booster.save_model(model, place, shard=shard, use_safetensors=True, size_per_shard=0.004, use_async=background)
        booster.save_optimizer(OptimizerWrapper(optimizer), place, shard=shard, size_per_shard=0.004, use_async=background, prefix="p" if shard else None)
        booster.save_lr_scheduler(scheduler, at(place, "scheduler.pt"))
        again = trained(0, kind, model=Mixed(9), **options)
        for load, what, path in ((booster.load_model, again[0], place), (booster.load_optimizer, OptimizerWrapper(again[1]), place),
                                 (booster.load_lr_scheduler, again[2], at(place, "scheduler.pt"))):
            load(what, path)
        trained(3, kind, *again)
        states = [[bits(t) for s in o.state_dict()["state"].values() for t in s.values() if isinstance(t, torch.Tensor)] for o in (expected[1], again[1])]
        resumed[f"{kind.__name__}, {shard}, {background}"] = [equal(expected[0], again[0]), states[0] == states[1] and len(states[0]) > 3,
                                                              expected[2].state_dict() == again[2].state_dict(),
                                                              expected[1].param_groups[0]["lr"] == again[1].param_groups[0]["lr"]]
        if shard and not background:
            optimizers_listed[kind.__name__] = sorted(n for n in os.listdir(place) if "optim" in n)
found("resumed", resumed)
found("names of optimizers", optimizers_listed["AdamW"])
_, optimizer, _ = trained(2, torch.optim.AdamW, lr=0.1)
disk.save_optimizer(optimizer, at("optim.bin"))
_, other, _ = trained(0, torch.optim.AdamW, lr=0.1)
other.load_state_dict(torch.load(at("optim.bin")))
found("torch.load of an optimizer", str(other.state_dict()) == str(optimizer.state_dict()))
torch.save(optimizer.state_dict(), at("optim.pt"))
_, other, _ = trained(0, torch.optim.AdamW, lr=0.1)
disk.load_optimizer(other, at("optim.pt"))
found("of torch.save", str(other.state_dict()) == str(optimizer.state_dict()))
os.unlink(at("optim.pt"))


class Scaled(torch.optim.SGD):
    """Its state dict has more than PyTorch's."""

    scale = 1.0

    def state_dict(self):
        return {**super().state_dict(), "scale": self.scale}

    def load_state_dict(self, state):
        self.scale = state["scale"]
        super().load_state_dict({k: v for k, v in state.items() if k != "scale"})


more = []
for shard in (False, True, True):
    one, two = (Scaled(nn.Linear(2, 2).parameters(), lr=0.1) for _ in range(2))
    one.scale = 4.0
    disk.save_optimizer(one, at(f"scaled{shard}"), shard=shard)
    disk.load_optimizer(two, at(f"scaled{shard}"))
    more.append(two.scale)
found("more than states and groups", [more, sorted(n for n in os.listdir(at("scaledTrue")) if "rest" in n)])
found("scheduler", raised(RuntimeError, disk.load_lr_scheduler, torch.optim.lr_scheduler.StepLR(optimizer, 2), at("optim.bin")).replace(folder, ""))
shutil.rmtree(folder)
