"""One rank of a script that does to gradients and states of DistributedDataParallel what scripts do, and prints all that it sees, for run.py:

    looks.py HABIT[,HABIT]... [BACKEND [default]]       default: tensors are made on the device

Each line has the digests of the parameters and of the gradients, or of the states at the end. Ranks write their lines whole."""
import gc
import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grad_norm_

RANK = int(os.environ.get("RANK", "0"))
SGD, ADAM = torch.optim.SGD, torch.optim.Adam
OPTIMIZERS = {
    "adam": lambda p: ADAM(p, 1e-3),
    "fused": lambda p: ADAM(p, 1e-3, fused=True),
    "nesterov": lambda p: SGD(p, 1e-2, momentum=0.9, nesterov=True),  # PyTorch leaves the step's direction in p.grad
}


def say(*words):
    os.write(1, (" ".join(map(str, ("saw", *words))) + "\n").encode())


def digest(tensors):
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(b"none" if tensor is None else tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def gradients(model):
    return digest([p.grad for p in model.parameters()])


def nothing(model, step):
    pass


def one_rank_looks(model, step):
    """The other one is ahead, or behind."""
    if step % 2 == RANK:
        say("norms", RANK, step, *(f"{p.grad.norm().item():.6g}" for p in model.parameters()))
    elif step == 0:
        time.sleep(0.2)


def halved_by_hand(model, step):
    for p in model.parameters():
        p.grad.mul_(0.5)


def looks_then_clips(model, step):
    one_rank_looks(model, step)
    clip_grad_norm_(model.parameters(), 0.05)


def clips_then_looks(model, step):
    say("norm", RANK, step, f"{clip_grad_norm_(model.parameters(), 0.05).item():.6g}")
    one_rank_looks(model, step)


def written_before_a_slow_look(model, step):
    if RANK == 1:
        time.sleep(0.3)
        say("slow", step, gradients(model))
    if RANK == 0:
        for p in model.parameters():
            p.grad.mul_(1.0)


def looks_between_collectives(model, step):
    """A rank looks, by itself or with the others, while another's stream already waits for it."""
    if RANK == 1 and step:
        time.sleep(0.1)
        say("alone", step, gradients(model))
    dist.all_reduce(torch.ones(5, device="cuda"))
    for p in model.parameters():
        p.grad.mul_(2.0)
        dist.all_reduce(p.grad)


HABITS = nothing, one_rank_looks, halved_by_hand, looks_then_clips, clips_then_looks, written_before_a_slow_look, looks_between_collectives


def model_of():
    torch.manual_seed(0)
    layers = torch.nn.Linear(64, 700), torch.nn.ReLU(), torch.nn.Linear(700, 700), torch.nn.ReLU(), torch.nn.Linear(700, 5)
    return torch.nn.Sequential(*layers).cuda()


def train(name, habit, optimizer, scaled):
    model = model_of()
    wrapped, optimizer = torch.nn.parallel.DistributedDataParallel(model), OPTIMIZERS[optimizer](model.parameters())
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, enabled=scaled)
    for step in range(4):
        torch.manual_seed(100 * step + RANK)
        loss = wrapped(torch.randn(4, 64).cuda()).pow(2).mean() * (float("inf") if scaled and (step, RANK) == (2, 1) else 1.0)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        habit(model, step)
        scaler.step(optimizer)
        scaler.update()
        seen = [] if step == 1 else [gradients(model)]
        say(name, RANK, step, f"{loss.item():.9g}", scaler.get_scale(), digest(model.parameters()), *seen)
    say(name, RANK, "states", states(optimizer))


def states(optimizer):
    found = optimizer.state_dict()["state"]
    return digest([value for key in sorted(found) for value in found[key].values() if isinstance(value, torch.Tensor)])


def look_late():
    """Rank 0 looks when the other one has forgotten the model, and used its memory for something else."""
    model = model_of()
    wrapped, optimizer = torch.nn.parallel.DistributedDataParallel(model), OPTIMIZERS["fused"](model.parameters())
    for step in range(2):
        optimizer.zero_grad()
        wrapped(torch.full((4, 64), 0.1 * (RANK + step + 1)).cuda()).pow(2).mean().backward()
        optimizer.step()
    if RANK == 0:
        time.sleep(0.5)
        say("late", states(optimizer), gradients(model))
        return
    del model, wrapped, optimizer
    gc.collect()
    junk = [torch.full((size,), 7.0, device="cuda") for size in 30 * [1, 5, 700, 64 * 700, 700 * 700]]
    time.sleep(1.0)
    say("late", digest(junk[:1]))


def main():
    torch.set_num_threads(1)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if len(sys.argv) > 3:
        torch.set_default_device("cuda")
    dist.init_process_group(sys.argv[2] if len(sys.argv) > 2 else "nccl")
    wanted = sys.argv[1].split(",")
    for number, habit in enumerate(habit for habit in HABITS if habit.__name__ in wanted):
        for optimizer in OPTIMIZERS if number < 2 else ("adam", "nesterov"):
            train(f"{habit.__name__}:{optimizer}", habit, optimizer, scaled=False)
    train("scaled:fused", nothing, "fused", scaled=True)
    train("scaled:nesterov", clips_then_looks, "nesterov", scaled=True)
    look_late()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
