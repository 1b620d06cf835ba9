"""A rank of a job in which somebody comes late, or a device hangs. The first argument says how."""
import ctypes
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

how, seconds = sys.argv[1], float(sys.argv[2])
if how.startswith("nccl"):  # on simulated devices
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if how.startswith("nccl") else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()
late = world - 1


def dawdle():
    time.sleep(seconds)


def reduce(group=None):
    values = torch.full((1000,), float(rank), device="cuda" if how.startswith("nccl") else "cpu")
    dist.all_reduce(values, group=group)


def hang(what, rank_too=True):
    """From here on, what the simulated device is given hangs, for some seconds."""
    if rank_too:
        ctypes.CDLL(None).sim_hang_set(what)
        threading.Timer(seconds, ctypes.CDLL(None).sim_hang_set, (b"",)).start()


def compute():
    torch.ones(10, device="cuda").add_(1)


reduce()
if how == "collective":  # the last rank is late in the group of all, then in a group of two
    if rank == late:
        dawdle()
    reduce()
    pair = dist.new_group([0, late])
    if rank == late:
        dawdle()
    if rank in (0, late):
        reduce(pair)
elif how == "message":  # the first rank receives what the last one sends late, after one that came in time
    for turn in range(2):
        if rank == late:
            if turn == 1:
                dawdle()
            for sent in (dist.isend(torch.ones(10), dst=0, tag=turn), dist.isend(torch.ones(10), dst=0)):
                sent.wait()
        elif rank == 0:
            dist.recv(torch.empty(10), src=late)
            dist.recv(torch.empty(10), src=late, tag=turn)
elif how == "nccl":  # the others have enqueued two collectives when the last rank comes to the first
    if rank == late:
        dawdle()
    reduce()
    reduce()
    torch.cuda.synchronize()
elif how == "nccl message":
    if rank == late:
        dawdle()
        dist.send(torch.ones(10, device="cuda"), dst=0)
    elif rank == 0:
        dist.recv(torch.empty(10, device="cuda"), src=late)
    torch.cuda.synchronize()
elif how == "nccl hangs":  # on all devices, after all ranks have enqueued the same
    torch.cuda.synchronize()
    hang(b"nccl:1")
    reduce()
    reduce()
    torch.cuda.synchronize()
elif how == "nccl and a kernel hangs":  # on the last device; the first ones wait for it in the collective behind
    torch.cuda.synchronize()
    hang(b"launch:1", rank == late)
    compute()
    reduce()
    if rank == late:
        torch.ones(1, device="cuda").cpu()
    torch.cuda.synchronize()
elif how == "nccl and a rank waits for its device":  # the others have enqueued a collective, and it has not
    torch.cuda.synchronize()
    hang(b"launch:1", rank == late)
    compute()
    if rank == late:
        torch.cuda.synchronize()
    reduce()
    torch.cuda.synchronize()
elif how == "nccl and a rank polls":  # its device: it is in no call that waits
    torch.cuda.synchronize()
    hang(b"launch:1")
    compute()
    event = torch.cuda.Event()
    event.record()
    while not event.query():
        time.sleep(0.05)
elif how == "nccl is slow":  # each collective within the limit, and all of them not; then long ones, each waited for
    torch.cuda.synchronize()
    ctypes.CDLL(None).sim_fault_set(b"", b"nccl:%d" % int(seconds * 1e6))
    for _ in range(8):
        reduce()
    torch.cuda.synchronize()
    for _ in range(3):
        reduce()
        torch.cuda.synchronize()
    ctypes.CDLL(None).sim_fault_set(b"", b"")
elif how == "different":  # the ranks call different collectives; nobody gets further
    if rank == late:
        dist.broadcast(torch.zeros(10), src=late - 1, async_op=True)
        time.sleep(600)
    reduce()
elif how == "lock":  # the last rank holds the interpreter, inside C code
    if rank == late:
        ctypes.PyDLL(None).sleep(int(seconds))
    reduce()
elif how == "stopped":
    if rank == late:
        os.kill(os.getpid(), signal.SIGSTOP)
    reduce()
elif how == "store":  # a rank is late in a backward: the others wait for its sums
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):
        if step == 1 and rank == late:
            dawdle()
        model(torch.ones(2, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
elif how == "slow":  # within the limit, each in turn
    for turn in range(6):
        if turn % world == rank:
            time.sleep(seconds)
        reduce()
dist.destroy_process_group()
sys.stdout.write(f"done {rank}\n")  # one write: the ranks share the pipe
sys.stdout.flush()
