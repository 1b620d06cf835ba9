"""Ranks that rearrange the memory of their parameters, gradients and optimizer states: all of them, or one alone."""

import copy

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import record
from model import Classifier, batch


def build(model, optimizer_class=torch.optim.SGD, sync=True, **settings):
    wrapped = DistributedDataParallel(model, init_sync=sync)
    return wrapped, optimizer_class(model.parameters(), **(settings or {"lr": 0.05, "momentum": 0.9}))


def train(log, model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(next(model.parameters()).dtype)), y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


def largest(model):
    return max(model.parameters(), key=lambda p: p.numel())


@record.case
def wrapped_again_in_double(log):
    """Another type, and DistributedDataParallel once more."""
    module = Classifier()
    train(log, *build(module), 2)
    module.double()
    module.zero_grad()
    train(log, *build(module), 2, first=2)


@record.case
def wrapped_again_in_bfloat16(log):
    module = Classifier()
    train(log, *build(module), 2)
    module.zero_grad()
    for p in module.parameters():
        p.data = p.data.bfloat16()
    model, optimizer = build(module)
    for step in range(2, 4):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.bfloat16()).float(), y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def wrapped_again_after_half_and_back(log):
    module = Classifier()
    train(log, *build(module), 2)
    module.half().float()
    module.zero_grad()
    train(log, *build(module, torch.optim.Adam, lr=0.01), 3, first=2)


@record.case
def model_of_rank_0(log):
    """Trained on all ranks, then sent to the others, which wrap another object than before."""
    module = Classifier()
    train(log, *build(module), 2)
    module.zero_grad()
    models = [module]
    dist.broadcast_object_list(models)
    train(log, *build(models[0]), 3, first=2)


@record.case
def other_memory_on_rank_0(log):
    """The same values, in a block of its own on one rank alone."""
    model, optimizer = build(Classifier())
    train(log, model, optimizer, 2)
    p = largest(model)
    if dist.get_rank() == 0:
        p.data = p.data.clone()
    train(log, model, optimizer, 3, first=2)


@record.case
def other_values_on_each_rank(log):
    """The ranks' parameters differ from here on, and each goes on with its own."""
    model, optimizer = build(Classifier())
    train(log, model, optimizer, 2)
    p = largest(model)
    p.data = p.data + 0.125 * dist.get_rank()
    train(log, model, optimizer, 3, first=2)


@record.case
def alike_without_sync(log):
    """Nobody sends the values of rank 0, and all have them."""
    train(log, *build(Classifier(), sync=False), 3)


@record.case
def apart_without_sync(log):
    """The ranks' values differ from the begin, and each goes on with its own."""
    module = Classifier()
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(1 - 0.01 * dist.get_rank())
    train(log, *build(module, sync=False), 3)


@record.case
def memory_of_numpy_on_rank_1(log):
    model, optimizer = build(Classifier())
    train(log, model, optimizer, 2)
    p, array = largest(model), None
    if dist.get_rank() == 1:
        array = numpy.array(p.detach())
        p.data = torch.from_numpy(array)
    for step in range(2, 5):
        train(log, model, optimizer, 1, first=step)
        if array is not None:
            log.note("array", torch.from_numpy(array))


@record.case
def part_beside_the_whole(log):
    """Two parameters, and one is the begin of the other's memory."""
    module = Classifier()
    module.part = torch.nn.Parameter(module.deep.weight.detach()[:30])
    model = DistributedDataParallel(module, find_unused_parameters=True)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    train(log, model, optimizer, 3)


@record.case
def states_set_to_zero(log):
    """On every rank, of which each shows the zeros until the next step and the states after it."""
    model, optimizer = build(Classifier(), torch.optim.Adam, lr=0.01)
    train(log, model, optimizer, 2)
    for state in optimizer.state.values():
        for value in state.values():
            if value.dim():
                value.data = torch.zeros_like(value)
    train(log, model, optimizer, 3, first=2)


@record.case
def states_loaded_on_rank_0(log):
    """One rank alone halves its states, and steps with these."""
    model, optimizer = build(Classifier(), torch.optim.Adam, lr=0.01)
    train(log, model, optimizer, 2)
    loaded = copy.deepcopy(optimizer.state_dict())
    if dist.get_rank() == 0:
        for state in loaded["state"].values():
            state["exp_avg"].mul_(0.5)
        optimizer.load_state_dict(loaded)
    train(log, model, optimizer, 3, first=2)


@record.case
def kept_states(log):
    """Rank 1 alone keeps what it has while all load others."""
    model, optimizer = build(Classifier(), torch.optim.Adam, lr=0.01)
    train(log, model, optimizer, 2)
    kept = optimizer.state_dict() if dist.get_rank() == 1 else None
    before = copy.deepcopy(optimizer.state_dict())
    train(log, model, optimizer, 1, first=2)
    optimizer.load_state_dict(before)
    train(log, model, optimizer, 2, first=3)
    log.note("kept", kept["state"] if kept else 0)


if __name__ == "__main__":
    record.main()
