"""One rank, of DistributedDataParallel or of a single-process script, that moves models to its device in the ways of scripts, trains them and prints digests, for
run.py:

    arrivals.py WAY[,WAY]...

Under Castor each rank tells standard error how many bytes of parameters it has on the host when a model was moved, when it was wrapped and at the end."""
import copy
import gc
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

from looks import digest, say

BY_DDP = "LOCAL_RANK" in os.environ
RANK = int(os.environ.get("RANK", "0"))
WIDTH, LAYERS = 1640, 3  # 10.3 MiB each: large enough to be shared as they arrive
DEVICE = "cuda"


class Way:
    """How a script makes its model and moves it."""

    optimizer = staticmethod(lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9))
    group = None
    seed = 1

    def make(self):
        return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])

    def move(self, model):
        return model.to(DEVICE)

    def moved(self, model):
        pass


class alike(Way):
    pass


class late(Way):
    def move(self, model):
        time.sleep(RANK)
        return model.to(DEVICE)


class apart(Way):
    seed = 1 + RANK


class zeroed_on_one_rank(Way):
    def moved(self, model):
        if RANK == 0:
            nn.init.zeros_(model[1].weight)


class loaded(Way):
    optimizer = staticmethod(lambda p: torch.optim.AdamW(p, 1e-3))

    def moved(self, model):
        model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})


class equal_layers(Way):
    """The ranks move layers of equal bytes in different orders."""

    def make(self):
        first = nn.Linear(WIDTH, WIDTH)
        return nn.Sequential(first, *[copy.deepcopy(first) for _ in range(LAYERS - 1)])

    def move(self, model):
        for layer in list(model)[::1 if RANK % 2 else -1]:
            layer.to(DEVICE)
        return model


class tied(Way):
    def make(self):
        model = super().make()
        model[2].weight = model[0].weight
        return model


class frozen(Way):
    def make(self):
        model = super().make()
        model[0].requires_grad_(False)
        return model


class made_again(Way):
    def move(self, model):
        for _ in range(2):
            moved = copy.deepcopy(model).to(DEVICE)
            say("sum", f"{moved[1].weight.sum().item():.6g}")
            del moved
            gc.collect()
        return model.to(DEVICE)


class of_one_rank_too(Way):
    """Rank 0 has another model of the same values."""

    def move(self, model):
        if RANK == 0:
            self.other = copy.deepcopy(model).to(DEVICE)
        return model.to(DEVICE)

    def moved(self, model):
        if RANK == 0:
            with torch.no_grad():
                self.other[0].weight.add_(1)
            say("other", digest(self.other.parameters()))


class doubled(Way):
    def move(self, model):
        return model.to(DEVICE).double()


class pinned(Way):
    def move(self, model):
        for p in model.parameters():
            p.data = p.data.pin_memory()
        return model.to(DEVICE, non_blocking=True)


class in_groups_of_two(Way):
    """Each wrapped over ranks of its own."""

    def __init__(self):
        if BY_DDP:
            groups = [dist.new_group([first, first + 1]) for first in range(0, dist.get_world_size(), 2)]
            self.group = groups[RANK // 2]


def on_the_host():
    try:
        import castor
    except ImportError:
        return 0
    return castor.memory_stats()["parameters"]["host"]


def train(name):
    way = globals()[name]()
    torch.manual_seed(way.seed)
    model = way.move(way.make())
    found = [on_the_host()]
    way.moved(model)
    called = nn.parallel.DistributedDataParallel(model, process_group=way.group) if BY_DDP else model
    found.append(on_the_host())
    optimizer = way.optimizer([p for p in model.parameters() if p.requires_grad])
    inputs = torch.Generator().manual_seed(RANK if way.group is None else RANK // 2)
    for step in range(3):
        optimizer.zero_grad()
        x = torch.randn(4, WIDTH, generator=inputs).to(DEVICE, model[0].weight.dtype)
        called(x).pow(2).mean().backward()
        optimizer.step()
    found.append(on_the_host())
    say(name, RANK, digest(model.parameters()))
    say("about", name, RANK, *(f"{p.detach().abs().sum().item():.4g}" for p in model.parameters()))
    os.write(2, f"rank {os.environ.get('CASTOR_RANK', RANK)}: {name}: {' '.join(map(str, found))} bytes of {sum(p.nbytes for p in model.parameters())} on the host\n".encode())


def main():
    torch.set_num_threads(1)
    if BY_DDP:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
    for name in sys.argv[1].split(","):
        train(name)
        gc.collect()
        torch.cuda.empty_cache()
    if BY_DDP:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
