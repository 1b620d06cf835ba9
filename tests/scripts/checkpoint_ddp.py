"""Checkpoints: saved by rank 0 alone, loaded before and after the first step, resumed."""

import copy
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

import record
from model import Classifier, batch
from steps import train_step


def start(optimizer_class=torch.optim.AdamW, lr=1e-3, **settings):
    model = DistributedDataParallel(Classifier())
    return model, optimizer_class(model.parameters(), lr=lr, **settings)


def save(path, model, optimizer, step):
    torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)


@record.case
def saved_by_rank_0(log):
    """No barrier: the other ranks train on while rank 0 writes."""
    model, optimizer = start()
    for step in range(4):
        loss = train_step(model, optimizer, step)
        if dist.get_rank() == 0 and step % 2:
            save(log.path(f"step{step}.pt"), model, optimizer, step)
        log.note("loss", loss)
    log.step(loss, model, optimizer)


@record.case
def saved_between_backward_and_step(log):
    model, optimizer = start()
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if dist.get_rank() == 0:
            save(log.path("last.pt"), model, optimizer, step)
            torch.save([p.grad for p in model.parameters()], log.path("gradients.pt"))
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def state_dicts_of_rank_0(log):
    """Reads on one rank, late, while the other goes on."""
    import time

    model, optimizer = start()
    for step in range(3):
        loss = train_step(model, optimizer, step)
        if dist.get_rank() == 0:
            time.sleep(0.1)
            log.note("optimizer", optimizer.state_dict())
            log.note("parameters", model.state_dict())
        log.note("loss", loss)


@record.case
def best_kept_in_memory(log):
    """state_dict() without a copy is a view that follows; a deepcopy does not."""
    model, optimizer = start()
    view = model.state_dict()
    best = None
    for step in range(4):
        loss = train_step(model, optimizer, step)
        if step == 1:
            best = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
        log.note("parameters as a view", view)
    model.load_state_dict(best[0])
    optimizer.load_state_dict(best[1])
    log.step(loss, model, optimizer)
    loss = train_step(model, optimizer, 4)
    log.step(loss, model, optimizer)


@record.case
def loaded_before_the_first_step(log):
    torch.manual_seed(77)
    other = Classifier()
    helper = torch.optim.AdamW(other.parameters(), lr=1e-3)
    x, y = torch.randn(8, 32), torch.arange(8) % 5
    F.cross_entropy(other(x), y).backward()
    helper.step()
    model, optimizer = start()
    model.module.load_state_dict(other.state_dict())
    optimizer.load_state_dict(helper.state_dict())
    log.step(None, model, optimizer)
    for step in range(3):
        loss = train_step(model, optimizer, step)
        log.step(loss, model, optimizer)


@record.case
def loaded_in_mid_run(log):
    model, optimizer = start(torch.optim.SGD, 0.1, momentum=0.9)
    saved = None
    for step in range(5):
        loss = train_step(model, optimizer, step)
        if step == 1:
            saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
        if step == 3:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        log.step(loss, model, optimizer)


@record.case
def loaded_by_rank_0_then_broadcast(log):
    """Rank 0 alone loads the weights, the script broadcasts them."""
    model, optimizer = start()
    train_step(model, optimizer, 0)
    if dist.get_rank() == 0:
        torch.manual_seed(31)
        model.module.load_state_dict(Classifier().state_dict())
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    log.parameters(model)
    for step in range(1, 3):
        loss = train_step(model, optimizer, step)
        log.step(loss, model, optimizer)


@record.case
def loaded_with_assign(log):
    """load_state_dict(assign=True) in mid-run; the optimizer keeps the old parameters, so a new one is made."""
    model, optimizer = start()
    train_step(model, optimizer, 0)
    torch.manual_seed(32)
    model.module.load_state_dict(Classifier().state_dict(), assign=True)
    model = DistributedDataParallel(model.module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, 3):
        loss = train_step(model, optimizer, step)
        log.step(loss, model, optimizer)


@record.case
def distributed_checkpoint_functions(log):
    model, optimizer = start()
    train_step(model, optimizer, 0)
    weights, states = copy.deepcopy(get_state_dict(model, optimizer))
    train_step(model, optimizer, 1)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)
    log.step(None, model, optimizer)
    loss = train_step(model, optimizer, 2)
    log.step(loss, model, optimizer)


@record.case
def resumed(log):
    """Goes on from a checkpoint where there is one, as a second run in the same folder does."""
    path = log.path("resume.pt")
    model, optimizer = start(torch.optim.AdamW, 1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    first = 0
    if os.path.exists(path):
        saved = torch.load(path, weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        first = saved["step"]
        log.print(f"resumed at {first}")
    dist.barrier()
    for step in range(first, first + 3):
        loss = train_step(model, optimizer, step)
        scheduler.step()
        log.step(loss, model, optimizer)
    if dist.get_rank() == 0:
        state = {
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "step": first + 3,
        }
        torch.save(state, path)


@record.case
def mapped_file(log):
    """Weights loaded from a memory-mapped file before wrapping."""
    path = log.path(f"mapped{dist.get_rank()}.pt")
    torch.manual_seed(40)
    torch.save(Classifier().state_dict(), path)
    network = Classifier()
    network.load_state_dict(torch.load(path, mmap=True, weights_only=True), assign=True)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = train_step(model, optimizer, step)
        log.step(loss, model, optimizer)


if __name__ == "__main__":
    record.main()
