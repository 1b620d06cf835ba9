"""A script of one process that trains on a device, and prints its losses, for run.py:

    single.py small|large|deep|normed|accumulated|conjugate|seeded_apart [SEED]

normed: a function of the script's divides the gradients of a batch by their norm. small: with dropout, batch norm and clipping; its optimizer is built before the model comes to the device. large: plain layers, whose model data is three
times the device that run.py gives it. deep: what it saves of a batch is that. accumulated: with layers that a reentrant checkpoint computes once more, and micro-steps: of CASTOR_ACCUMULATE, or
by hand. seeded_apart: weights of the seed, which is the process's number. conjugate: how many references to a tensor there are before and after the allocator hears of a stream that uses it."""
import os
import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def small():
    model = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 5))
    return model, torch.optim.AdamW(model.parameters(), 1e-3), 64


class Normed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad / grad.norm()


class Network(nn.Sequential):
    def forward(self, x):
        return super().forward(Normed.apply(x * self[0].weight.mean()))


def normed():
    model = Network(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 5)).cuda()
    return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), 64


def large():
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(12)]).cuda()
    return model, torch.optim.Adam(model.parameters(), 1e-4), 1024


class Block(nn.Linear):
    def forward(self, x):
        return x + nn.functional.gelu(super().forward(x))


class Deep(nn.Module):
    """Its call returns the loss, and saves 288 MiB."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(64, 64) for _ in range(12))

    def forward(self, x, y):
        for block in self.blocks:
            x = block(x)
        return (x - y).pow(2).mean()


def deep():
    """Of ranks as well, with DistributedDataParallel, where torchrun has started them."""
    model = Deep()
    if "RANK" in os.environ:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.distributed.init_process_group("nccl")
        model = nn.parallel.DistributedDataParallel(model.cuda())
        torch.manual_seed(1 + torch.distributed.get_rank())
    model.cuda()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(6 if torch.distributed.is_initialized() else 4):
        loss = model(torch.randn(3 << 14, 64).cuda(), torch.randn(3 << 14, 64).cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.5g}", flush=True)


class Recomputed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 5)

    def forward(self, x):
        x = checkpoint(lambda x: self.second(self.first(x).relu()), x, use_reentrant=True)
        return self.last(x.relu())


def accumulated():
    model, by_hand = Recomputed().cuda(), "CASTOR_ACCUMULATE" not in os.environ
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for micro_step in range(6):
        loss = model(torch.randn(10, 64).cuda().requires_grad_()).pow(2).mean()
        (loss / 2 if by_hand else loss).backward()
        if micro_step % 2 or not by_hand:
            optimizer.step()
            optimizer.zero_grad()
        print(f"loss {loss.item():.5g}", flush=True)
    print(f"parameters {sum(p.double().abs().sum().item() for p in model.parameters()):.6g}")


def seeded_apart():
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else os.getpid()
    print("seed", seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 5)).cuda()
    model[0].weight.data = model[0].weight.data.T.contiguous().T  # dense, in another order
    torch.manual_seed(0)
    return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), 64


def conjugate():
    seen = torch.ones(4, dtype=torch.complex64, device="cuda").conj()
    before = seen._use_count()
    seen.record_stream(torch.cuda.current_stream())
    print("references", before, seen._use_count())


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if sys.argv[1] == "conjugate":
        conjugate()
        return
    if sys.argv[1] in ("accumulated", "deep"):
        {"accumulated": accumulated, "deep": deep}[sys.argv[1]]()
        return
    model, optimizer, width = {"small": small, "large": large, "normed": normed, "seeded_apart": seeded_apart}[sys.argv[1]]()
    model.cuda()
    for _ in range(6):
        loss = model(torch.randn(10, width).cuda()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"loss {loss.item():.4g} norm {norm.item():.4g}", flush=True)
    states = optimizer.state_dict()["state"]
    print(f"states {sum(value.double().abs().sum().item() for state in states.values() for value in state.values()):.4g}")
    print(f"distributed {torch.distributed.is_initialized()}")


if __name__ == "__main__":
    main()
