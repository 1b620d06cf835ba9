"""torch.compile beside DistributedDataParallel, in the orders that scripts use, and the compiler's own words."""

import importlib
import sys

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import record
from model import Classifier, batch

BACKEND = "aot_eager"  # graphs are captured and differentiated; no machine code is made


def train(log, run, model, optimizer, steps=3, first=0):
    for step in range(first, first + steps):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(run(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        log.step(loss, model, optimizer)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@record.case
def inside(log):
    """What nanoGPT does: the module is compiled, then wrapped."""
    model = DistributedDataParallel(torch.compile(Classifier(), backend=BACKEND))
    train(log, model, model, sgd(model))


@record.case
def outside(log):
    """The wrapped module is compiled: the graph is cut where DDP's buckets end."""
    model = DistributedDataParallel(Classifier())
    train(log, torch.compile(model, backend=BACKEND), model, sgd(model))


@record.case
def in_place(log):
    network = Classifier()
    network.compile(backend=BACKEND)
    model = DistributedDataParallel(network)
    train(log, model, model, torch.optim.AdamW(model.parameters(), lr=1e-3))


@record.case
def in_the_middle(log):
    """Training has begun when the compiler is first asked for."""
    model = DistributedDataParallel(Classifier())
    optimizer = sgd(model)
    train(log, model, model, optimizer)
    train(log, torch.compile(model.module, backend=BACKEND), model, optimizer, steps=1, first=3)
    train(log, model, model, optimizer, first=4)


@record.case
def loss_only(log):
    model = DistributedDataParallel(Classifier())
    optimizer = sgd(model)
    criterion = torch.compile(F.cross_entropy, backend=BACKEND)
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def optimizer_too(log):
    model = DistributedDataParallel(Classifier())
    optimizer = sgd(model)
    step = torch.compile(optimizer.step, backend="eager")
    for number in range(3):
        x, y = batch(number)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        step()
        log.step(loss, model, optimizer)


@record.case
def whole_step(log):
    """Everything of a step inside one compiled function."""
    model = DistributedDataParallel(Classifier())
    optimizer = sgd(model)

    @torch.compile(backend="eager")
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    for number in range(4):
        loss = step(*batch(number))
        log.step(loss, model, optimizer)


@record.case
def words(log):
    """What scripts and libraries ask the compiler's package for, after an optimizer has stepped."""
    model = DistributedDataParallel(Classifier())
    optimizer = sgd(model)
    train(log, model, model, optimizer, steps=1)

    import torch._dynamo as early
    import torch._dynamo.config as config
    from torch._dynamo.eval_frame import OptimizedModule

    config.suppress_errors = True
    assert early.config is config and torch._dynamo.config.suppress_errors
    assert sys.modules["torch._dynamo.config"] is config is importlib.import_module("torch._dynamo.config")
    assert isinstance(torch.compile(model, backend=BACKEND), OptimizedModule)
    assert torch.compiler.disable(lambda v: v + 1)(1) == 2
    torch._dynamo.reset()
    early.of_the_script = 1
    assert torch._dynamo.of_the_script == 1
    train(log, model, model, optimizer, steps=1, first=1)


if __name__ == "__main__":
    record.main()
