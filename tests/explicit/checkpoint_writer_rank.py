"""torch.save under CASTOR_CHECKPOINT=async, while the script goes on: each file against one that PyTorch wrote at the same moment."""
import copy
import ctypes
import os
import sys

import torch
import torch.distributed as dist
from found import found

from castor.agent import core

world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
plain_save = torch.save.__wrapped__
WIDTH = 512  # of layers; a weight has several grains


def info():
    out = core.CheckpointInfo()
    core.checkpoint_get(ctypes.byref(out))
    return out


def build(kind):
    torch.manual_seed(3)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)), torch.nn.BatchNorm1d(WIDTH), torch.nn.Linear(WIDTH, 5))
    if world > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    if kind == "sgd":
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def step(model, optimizer, number):
    torch.manual_seed(100 * number + rank)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(torch.randn(8, WIDTH)), torch.randint(0, 5, (8,))).backward()
    optimizer.step()


def same(one, other):
    with open(one, "rb") as a, open(other, "rb") as b:
        return a.read() == b.read()


def busy():
    """The thread writes this first, so that what follows waits for it in memory."""
    torch.save(torch.ones(4 << 20), f"busy{rank}.pt")


def save(obj, name):
    """By PyTorch, then by Castor."""
    os.makedirs(f"plain{rank}", exist_ok=True)
    os.makedirs(f"castor{rank}", exist_ok=True)
    plain_save(obj, f"plain{rank}/{name}")
    busy()
    torch.save(obj, f"castor{rank}/{name}")


def equal(name):
    return same(f"plain{rank}/{name}", f"castor{rank}/{name}")


def training(kind):
    model, optimizer = build(kind)
    for number in range(2):
        step(model, optimizer, number)
    save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 2}, "steps.pt")
    for number in range(2, 5):
        step(model, optimizer, number)
    found(f"{kind}: steps", equal("steps.pt"))
    bare = model.module if world > 1 else model
    weight = bare[0].weight
    for name, edit in (
        ("in place", lambda: weight.detach().mul_(2)),
        ("data", lambda: weight.data.copy_(torch.ones_like(weight))),
        ("numpy", lambda: weight.detach().numpy().__setitem__(slice(None), 3)),
        ("memmove", lambda: ctypes.memset(weight.data_ptr(), 65, weight.nbytes)),
        ("state", lambda: [v.zero_() for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]),
        ("new data", lambda: setattr(weight, "data", torch.full_like(weight, 5))),
        ("kernel", lambda: open("/dev/zero", "rb").readinto(memoryview(weight.detach().numpy()).cast("B"))),
    ):
        save([model.state_dict(), optimizer.state_dict()], f"{name}.pt")
        edit()
        found(f"{kind}: {name}", equal(f"{name}.pt"))
    given_back = torch.randn(WIDTH * WIDTH)
    save(given_back, "given back.pt")
    given_back.untyped_storage().resize_(0)
    others = [torch.full((WIDTH, WIDTH), 7.) for _ in range(4)]
    found(f"{kind}: given back", equal("given back.pt") and len(others) == 4)
    step(model, optimizer, 6)
    states = copy.deepcopy(model.state_dict())
    save(model.state_dict(), "freed.pt")
    del model, optimizer, bare, weight
    others = [torch.full((WIDTH, WIDTH), 9.) for _ in range(12)]
    found(f"{kind}: freed", equal("freed.pt"))
    loaded = torch.load(f"castor{rank}/freed.pt")
    found(f"{kind}: loaded", all(torch.equal(loaded[key], value) for key, value in states.items()) and len(others) == 12)


def main():
    if world > 1:
        dist.init_process_group("gloo")
    for kind in ("sgd", "adam"):
        training(kind)
    if world > 1:
        dist.destroy_process_group()
    found("plugin", core.options.plugin)
    found("copied later", info().copied_later_bytes)


main()
sys.stdout.flush()
