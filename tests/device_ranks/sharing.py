"""A rank of a DDP script that shares its device with the others, over gloo. Prints how much model data of it is on the device, and how a child ends that is
forked after models were dropped, and collects their garbage.

    torchrun --nproc-per-node N sharing.py"""
import gc
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train():
    torch.manual_seed(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(16)]).cuda()  # before anybody knows of other ranks
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.full((4, 256), 0.1 + dist.get_rank(), device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()


def on_device():
    try:
        import castor
    except ImportError:
        return 0
    found = castor.memory_stats()
    return sum(found[kind]["device"] for kind in ("parameters", "gradients", "optimizer_states"))


def main():
    torch.set_num_threads(1)
    gc.disable()
    told = f"loss {train():.6f}, "
    told += f"then {train():.6f}"
    kept = on_device()
    child = os.fork()
    if not child:
        gc.collect()
        os._exit(0)
    os.write(1, f"rank {dist.get_rank()}: {told}; {kept} bytes on the device; a child ends with {os.waitpid(child, 0)[1]}\n".encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
