"""One rank that trains a model of some millions of parameters, and prints how many bytes of its device each parameter takes, for run.py."""
import gc
import os

import torch
import torch.distributed as dist

WIDTH, LAYERS = 512, 24


def train():
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]).cuda()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(wrapped.parameters(), 1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        wrapped(torch.ones(2, WIDTH, device="cuda")).pow(2).mean().backward()
        optimizer.step()
    return torch.cuda.memory_allocated(), sum(p.numel() for p in model.parameters())


def main():
    torch.set_num_threads(1)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    bytes_used, count = train()
    gc.collect()
    os.write(1, f"rank {os.environ['RANK']}: {(bytes_used - torch.cuda.memory_allocated()) / count:.3f} bytes a parameter\n".encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
