"""One rank, of a DDP script or under --nproc, that trains a model of some millions of parameters, and prints how many bytes of its device each parameter
takes, for run.py.

    memory.py [WIDTH LAYERS]      under Castor also what it has on the host"""
import gc
import os
import sys

import torch
import torch.distributed as dist

WIDTH, LAYERS = map(int, sys.argv[1:] or (512, 24))


def train(by_ddp):
    """(bytes that it takes, its parameters, what it has on the host)"""
    before = torch.cuda.memory_allocated()
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]).cuda()
    called = torch.nn.parallel.DistributedDataParallel(model) if by_ddp else model
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(4):
        optimizer.zero_grad()
        called(torch.ones(4, WIDTH, device="cuda")).pow(2).mean().backward()
        optimizer.step()
    count = sum(p.numel() for p in model.parameters())
    return torch.cuda.memory_allocated() - before, count, _on_the_host(count)


def _on_the_host(count):
    try:
        import castor
    except ImportError:
        return ""
    found = castor.memory_stats()
    return ", on the host " + " ".join(f"{kind} {found[kind]['host'] / count:.3f}" for kind in ("parameters", "gradients", "optimizer_states"))


def main():
    torch.set_num_threads(1)
    by_ddp = "LOCAL_RANK" in os.environ
    if by_ddp:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
    for dtype in torch.float32, torch.bfloat16, torch.float16:  # the library's own memory
        x = torch.ones(2, 2, device="cuda", dtype=dtype, requires_grad=True)
        torch.nn.functional.linear(x, x, x[0]).sum().backward()
    del x
    before = torch.cuda.memory_allocated()
    taken, count, on_the_host = train(by_ddp)
    left = 0
    if by_ddp:
        gc.collect()
        for _ in range(3):  # what others may read is freed when all ranks have said that they have no more use for it
            torch.cuda.empty_cache()
            dist.barrier()
        left = torch.cuda.memory_allocated() - before
    os.write(1, f"rank {os.environ.get('RANK', '0')}: {taken / count:.3f} bytes a parameter, {left / count:.3f} when it is gone{on_the_host}\n".encode())
    if by_ddp:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
