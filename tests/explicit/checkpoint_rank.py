"""Checkpoints of several ranks: who writes, who waits, and distributed tensors."""
import ctypes
import os
import resource
import shutil
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

from castor.agent import core
from castor.checkpoint_io import CheckpointIndexFile, GeneralCheckpointIO, _writer
from castor.tensor import ColoParameter, ColoTensor, ColoTensorSpec, ProcessGroup, ShardSpec
from checkpoint_models import equal
from checkpoint_runs import run, started
from found import end, found, launch, raised

launch()
rank, world = dist.get_rank(), dist.get_world_size()
disk = GeneralCheckpointIO()
folder = os.environ["EXPLICIT_TEST_FOUND"]  # of this job, shared by its ranks


def at(*names):
    return os.path.join(folder, *names)


def entries(name):
    return sorted(os.listdir(at(name))) if os.path.isdir(at(name)) else None


# ---- rank 0 alone: the others are elsewhere, in a collective of the script
model, optimizer, scheduler = started(1, ddp=True)
run(model, optimizer, scheduler, 3)
if rank == 0:
    disk.save_model(model, at("alone"), shard=True, size_per_shard=0.01, use_safetensors=True)
    disk.save_optimizer(optimizer, at("alone"), shard=True, size_per_shard=0.01)
    disk.save_lr_scheduler(scheduler, at("alone", "scheduler.pt"))
dist.barrier()
found("alone", entries("alone"))

# ---- resumed without the plugin's model: nothing of it is wrapped; each rank's run is its own
run(model, optimizer, scheduler, 3)
plain = started(2)
disk.load_model(plain[0], at("alone"))
disk.load_optimizer(plain[1], at("alone"))
disk.load_lr_scheduler(plain[2], at("alone", "scheduler.pt"))
run(*plain, 3)
states = [o.state_dict()["state"] for o in (optimizer, plain[1])]
found("resumed", [equal(model.module, plain[0]), all(torch.equal(states[0][i][k], t) for i in states[1] for k, t in states[1][i].items()), len(states[1]) > 3])

# ---- all ranks save, and load at once, with rank 0 late; no other rank's file may be in the way
for i in range(3):
    if rank == 0:
        time.sleep(0.3)
    with torch.no_grad():
        for t in model.module.parameters():
            t.fill_(i)
    disk.save_model(model, at("all.bin"), use_async=i == 2)
    loaded = started(2)[0]
    disk.load_model(loaded, at("all.bin"))
    found(f"all, {i}", [equal(model.module, loaded), loaded.a.bias[0].item()])
if rank == 0:
    found("failed", raised(OSError, disk.save_model, model, at("no", "folder.bin")).replace(folder, ""))
if rank:
    disk.save_model(model, at("no", "folder.bin"))
    found("failed", raised(RuntimeError, disk.load_model, model, at("no", "folder.bin")).replace(folder, ""))
dist.barrier()


# ---- saves in the background: the other ranks load, and rank 0 does nothing for that any more, but waits for them elsewhere
def wide(value):
    made = nn.Linear(1024, 1024)
    with torch.no_grad():
        made.weight.fill_(value)
    steps = torch.optim.SGD(made.parameters(), lr=0.0, momentum=0.9)
    for p in made.parameters():
        p.grad = torch.full_like(p, value)
    steps.step()
    return made, steps


LATE = {
    "file": (lambda made, path: disk.save_model(made[0], path, use_safetensors=True, use_async=True), lambda made, path: disk.load_model(made[0], path)),
    "shards": (lambda made, path: disk.save_model(made[0], path, shard=True, size_per_shard=1, use_async=True), lambda made, path: disk.load_model(made[0], path)),
    "optimizer": (lambda made, path: disk.save_optimizer(made[1], path, use_async=True), lambda made, path: disk.load_optimizer(made[1], path)),
}


def values(made):
    return [made[0].weight[0, 0].item(), made[1].state[made[0].weight]["momentum_buffer"][0, 0].item()]


def late(what, value, fails):
    save, load = LATE[what]
    if rank == 0 and not fails:  # something stands before it in the queue
        job = _writer.Job(background=True)
        job.add_torch(at("busy"), torch.ones(12 << 20))
        job.commit()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == 0 and fails:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    save(wide(value), at(f"late {what}"))
    got, said = wide(0), None
    if rank:
        try:
            load(got, at(f"late {what}"))
        except RuntimeError as error:
            said = str(error).replace(folder, "")
    dist.barrier()
    if rank == 0:
        raised(OSError, _writer.wait) if fails else _writer.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    return value in values(got), said


def held():
    info = core.CheckpointInfo()
    core.checkpoint_get(ctypes.byref(info))
    return info.guarded_bytes + info.copied_at_once_bytes


before = held()
for what in LATE:
    found(f"in the background, {what}", late(what, 3.0, False)[0])
    got, said = late(what, 4.0, True)
    found(f"failed in the background, {what}", [not got, said])
found("indeed in the background", held() - before)
for value in (5.0, 6.0) if rank == 0 else (5.0,):  # rank 0 is ahead
    LATE["file"][0](wide(value), at("late file"))
if rank == 0:
    _writer.wait()
dist.barrier()
got = wide(0)
LATE["file"][1](got, at("late file"))
found("in the background, replaced", values(got)[0] == 6)
dist.barrier()


# ---- DTensors
mesh = init_device_mesh("cpu", (world,))


class Divided(nn.Module):
    def __init__(self, seed, dim=0):
        super().__init__()
        torch.manual_seed(seed)
        self.a = nn.Parameter(distribute_tensor(torch.randn(5, 6), mesh, [Shard(dim)]))
        self.b = nn.Parameter(distribute_tensor(torch.randn(4), mesh, [Replicate()]))
        self.c = nn.Parameter(torch.randn(3))


class Whole(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.a, self.b, self.c = (nn.Parameter(torch.randn(*shape)) for shape in ((5, 6), (4,), (3,)))


def wholes(module):
    return {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in module.state_dict().items()}


def stepped(module, lr=0.1):
    made = torch.optim.AdamW(module.parameters(), lr=lr, foreach=False)
    for i, p in enumerate(module.parameters()):
        p.grad = torch.full_like(p, i + 1.0) if lr else torch.zeros_like(p)
    made.step()
    return made


for safe in (False, True):
    for shard in (False, True):
        name = f"divided-{safe}-{shard}" + ("" if shard else ".safetensors" if safe else ".bin")
        optim = f"optim-{safe}-{shard}" + ("" if shard else ".bin")
        divided = Divided(1)
        steps = stepped(divided)
        disk.save_model(divided, at(name), shard=shard, use_safetensors=safe, size_per_shard=0.00005)
        disk.save_optimizer(steps, at(optim), shard=shard, size_per_shard=0.00005)
        expected = wholes(divided)
        into = Divided(2), Divided(3, dim=1), Whole(4)
        for one in into:
            disk.load_model(one, at(name))
        again = [stepped(one, 0.0) for one in into]
        for one in again:
            disk.load_optimizer(one, at(optim))
        moments = [{k: t.full_tensor() if isinstance(t, DTensor) else t for k, t in o.state_dict()["state"][0].items()} for o in (steps, *again)]
        found(f"gathered, {safe}, {shard}", [*(equal(wholes(one), expected) for one in into), *(all(torch.equal(m[k], moments[0][k]) for k in m) for m in moments),
                                             again[1].state[into[1].a]["exp_avg"].placements == (Shard(1),)])
        parts = f"parts-{safe}-{shard}" + ("" if shard else ".safetensors" if safe else ".bin")
        disk.save_model(divided, at(parts), shard=shard, use_safetensors=safe, gather_dtensor=False)
        disk.save_optimizer(steps, at("p" + optim), shard=shard, gather_dtensor=False)
        dist.barrier()
        same = Divided(2)
        disk.load_model(same, at(parts))
        same_steps = stepped(same, 0.0)
        disk.load_optimizer(same_steps, at("p" + optim))
        found(f"parts, {safe}, {shard}", [equal(wholes(same), expected), all(
            torch.equal(t.full_tensor() if isinstance(t, DTensor) else t, moments[0][k]) for k, t in same_steps.state_dict()["state"][0].items())])
        found(f"parts in another layout, {safe}, {shard}", raised(RuntimeError, disk.load_model, Divided(3, dim=1), at(parts)).replace(folder, ""))
        found(f"optimizer in another layout, {safe}, {shard}", raised(RuntimeError, disk.load_optimizer, stepped(Divided(3, dim=1)), at("p" + optim)).replace(folder, ""))
        other = at(parts, f"rank-{1 - rank:05d}-of-00002") if shard else at(f"parts-{safe}-{shard}.rank-{1 - rank:05d}-of-00002" + (".safetensors" if safe else ".bin"))
        found(f"another rank's part, {safe}, {shard}", raised(RuntimeError, disk.load_model, Divided(3), other).replace(folder, ""))
        dist.barrier()
found("parts", [entries("parts-True-True"), sorted(n for n in os.listdir(folder) if n.startswith("parts-"))])
index = CheckpointIndexFile.from_file(at("parts-True-True", f"rank-{rank:05d}-of-00002", "model.safetensors.index.json"))
disk.save_model(Divided(7), at("mixed"), shard=True, gather_dtensor=False)
disk.save_model(Divided(8), at("mixed"), shard=True)
disk.save_optimizer(steps, at("mixed"), shard=True, gather_dtensor=False)
dist.barrier()
disk.load_model(same, at("mixed"))
disk.load_optimizer(same_steps, at("mixed"))
found("a whole beside parts", equal(wholes(same), wholes(Divided(8))))
disk.load_model(same, at("divided-True-True"))
found("index of a part", index.contains_dtensor())
dist.barrier()
for name in os.listdir(folder):
    if rank == 0 and name.startswith("parts-False-False.rank-"):
        os.rename(at(name), at(name.replace("of-00002", "of-00004")))
    if rank == 0 and name == "parts-False-True":
        os.rename(at(name, "rank-00000-of-00002"), at(name, "rank-00000-of-00004"))
        shutil.rmtree(at(name, "rank-00001-of-00002"))
dist.barrier()
found("folder of another job", raised(RuntimeError, disk.load_model, same, at("parts-False-True")).replace(folder, ""))
dist.barrier()
found("and nothing is made there", entries("parts-False-True"))
found("parts of another job", raised(RuntimeError, disk.load_model, same, at("parts-False-False.bin")).replace(folder, ""))

# ---- ColoTensors
group = ProcessGroup(tp_degree=world)
block = torch.arange(24.0).view(4, 6).chunk(world, 1)[rank].contiguous()


class Colo(nn.Module):
    def __init__(self, data):
        super().__init__()
        self.w = ColoParameter(data.clone(), spec=ColoTensorSpec(group, ShardSpec([-1], [world])))


disk.save_model(Colo(block), at("colo.safetensors"), use_safetensors=True)
colo = Colo(torch.zeros_like(block))
disk.load_model(colo, at("colo.safetensors"))
flat = nn.Module()
flat.w = nn.Parameter(torch.zeros(4, 6))
disk.load_model(flat, at("colo.safetensors"))
found("ColoTensor", [colo.w.data.tolist() == block.tolist(), flat.w.tolist() == torch.arange(24.0).view(4, 6).tolist(), isinstance(colo.w, ColoTensor)])
disk.save_model(Colo(block + 1), at("colo-parts"), shard=True, gather_dtensor=False)
dist.barrier()
disk.load_model(colo, at("colo-parts"))
found("ColoTensor in parts", colo.w.data.tolist() == (block + 1).tolist())

# ---- rank 0 cannot write: no rank waits for ever in the collectives of the others
class Full:
    """Of a disk that is full after the first file."""

    def __init__(self, real):
        self.real, self.count = real, 0

    def __call__(self, *arguments, **named):
        self.count += 1
        if self.count > 2:
            raise OSError(28, "No space left on device", "a shard")
        return self.real(*arguments, **named)


if rank:  # its next load from there would say it
    disk.save_model(divided, at("no", "folder.bin"))
else:
    found("no folder", raised(OSError, disk.save_model, divided, at("no", "folder.bin")).replace(folder, ""))
found("a file is there", raised(RuntimeError, disk.save_model, divided, at("all.bin"), shard=True).replace(folder, ""))
real = _writer.Job
_writer.Job = Full(real)
try:
    disk.save_model(divided, at("full"), shard=True, size_per_shard=0.00005)
    found("full", None)
except OSError as error:
    found("full", error.strerror)
_writer.Job = real
dist.barrier()
found("left over", entries("full"))

# ---- ranks that do not come: an error in time, and the next save of all ranks is sound
if "waits" in sys.argv:
    since = time.monotonic()
    if rank == 0:
        found("alone with DTensors", raised(RuntimeError, disk.save_model, divided, at("hang.bin")).replace(folder, ""))
    else:
        disk.save_model(model, at("not written"))
        found("never written", raised(RuntimeError, disk.load_model, model, at("not written")).replace(folder, ""))
    found("in time", time.monotonic() - since < 10)
    dist.barrier()
disk.save_model(divided, at("after.bin"))
disk.load_model(same, at("after.bin"))
found("after it", equal(wholes(same), expected))
end()
if rank == 0:
    shutil.rmtree(at("alone"))
