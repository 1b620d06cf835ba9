"""One process that rearranges the memory of its parameters, gradients and optimizer states in the middle of the run."""

import copy
import weakref

import numpy
import torch
import torch.nn.functional as F

import record
from model import Classifier, batch

ROUNDS = (1, 3)  # after these steps something is rearranged


def train(log, optimizer_class, rearrange, steps=5, **settings):
    torch.manual_seed(3)
    model = Classifier()
    optimizer = optimizer_class(model.parameters(), **settings)
    kept = {}
    for step in range(steps):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(model.head.weight.dtype)), y)
        loss.backward()
        optimizer.step()
        if step in ROUNDS:
            rearrange(model, optimizer, kept)
        for name, thing in sorted(kept.items()):
            log.note(name, thing if isinstance(thing, dict) else torch.as_tensor(thing))
        log.step(loss, model, optimizer)


def with_both(log, rearrange):
    train(log, torch.optim.SGD, rearrange, lr=0.05, momentum=0.9)
    train(log, torch.optim.Adam, rearrange, lr=0.01)


def largest(model):
    return max(model.parameters(), key=lambda p: p.numel())


@record.case
def half_and_back(log):
    with_both(log, lambda model, optimizer, kept: model.half().float())


@record.case
def other_strides(log):
    """The same values in another order of elements."""

    def rearrange(model, optimizer, kept):
        p = largest(model)
        p.data = p.data.transpose(0, 1).contiguous().transpose(0, 1)

    with_both(log, rearrange)


@record.case
def parts_of_one_tensor(log):
    """Parameters are views of a flat tensor, which the script edits."""

    def rearrange(model, optimizer, kept):
        if "flat" in kept:
            kept["flat"].mul_(0.5)
            return
        parameters = list(model.parameters())
        flat, start = torch.cat([p.data.reshape(-1) for p in parameters]), 0
        for p in parameters:
            p.data = flat[start : start + p.numel()].view(p.shape)
            start += p.numel()
        kept["flat"] = flat

    with_both(log, rearrange)


@record.case
def loaded_tensors(log):
    """The script keeps the tensors that it puts in place."""

    def rearrange(model, optimizer, kept):
        for number, p in enumerate(model.parameters()):
            p.data = kept[f"loaded {number}"] = p.data * 0.9

    with_both(log, rearrange)


@record.case
def memory_of_numpy(log):
    def rearrange(model, optimizer, kept):
        p = largest(model)
        kept["array"] = p.detach().numpy().copy()
        p.data = torch.from_numpy(kept["array"])

    with_both(log, rearrange)


@record.case
def made_from_numpy(log):
    """The arrays are there before the optimizer is built."""
    model = Classifier()
    arrays = [numpy.array(p.detach()) for p in model.parameters()]
    for p, array in zip(model.parameters(), arrays):
        p.data = torch.from_numpy(array)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        for number, array in enumerate(arrays):
            log.note(f"array {number}", torch.from_numpy(array))
        log.step(loss, model, optimizer)


@record.case
def part_beside_the_whole(log):
    """Two parameters, and one is the begin of the other's memory."""
    model = Classifier()
    whole = largest(model)
    part = torch.nn.Parameter(whole.detach()[:3])
    optimizer = torch.optim.SGD([*model.parameters(), part], lr=0.05, momentum=0.9)
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) + part.square().mean()
        loss.backward()
        optimizer.step()
        log.note("the part", part.detach())
        log.step(loss, model, optimizer)


@record.case
def kept_states(log):
    """What the script keeps of a state_dict() stays when another one is loaded."""

    def rearrange(model, optimizer, kept):
        if "states" not in kept:
            kept["states"] = optimizer.state_dict()["state"]
        else:
            loaded = copy.deepcopy(optimizer.state_dict())
            for state in loaded["state"].values():
                for value in state.values():
                    if isinstance(value, torch.Tensor):
                        value.mul_(0.5)
            optimizer.load_state_dict(loaded)

    with_both(log, rearrange)


@record.case
def states_set_to_zero(log):
    def rearrange(model, optimizer, kept):
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor) and value.dim():
                    value.data = torch.zeros_like(value)

    with_both(log, rearrange)


@record.case
def states_outlive_their_model(log):
    """A new model and a new optimizer go on with the states of the old ones."""
    torch.manual_seed(3)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(5):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)
        if step == 2:
            values, states, gone = copy.deepcopy(model.state_dict()), optimizer.state_dict(), weakref.ref(model)
            del model, optimizer
            model = Classifier()
            model.load_state_dict(values)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            optimizer.load_state_dict(states)
            log.note("the old model is gone", gone() is None)


@record.case
def other_type(log):
    """Half way the script goes on in double precision, with a new optimizer."""
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(4):
        if step == 2:
            model.double()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(next(model.parameters()).dtype)), y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def other_type_under_the_optimizer(log):
    train(log, torch.optim.SGD, lambda model, optimizer, kept: model.double() if model.head.weight.dtype is torch.float32
          else model.float(), lr=0.05, momentum=0.9)


@record.case
def swapped_on_conversion(log):
    def rearrange(model, optimizer, kept):
        torch.__future__.set_swap_module_params_on_conversion(True)
        model.half().float()
        torch.__future__.set_swap_module_params_on_conversion(False)

    with_both(log, rearrange)


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ValueError("the script's own")


@record.case
def exception_in_backward(log):
    """It is caught, and the next batch comes: another model, which it did not reach, and this one go on."""
    torch.manual_seed(3)
    models = Classifier(), Classifier()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9) for model in models]
    for step in range(5):
        x, y = batch(step)
        for number, (model, optimizer) in enumerate(zip(models, optimizers)):
            optimizer.zero_grad()
            if step in ROUNDS and number == 0:
                parameter = next(model.parameters())
                loss = F.cross_entropy(model(x), y) + Failing.apply(parameter).sum()
                try:
                    loss.backward()
                except ValueError:
                    log.gradients(model, "after the exception")
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            log.step(loss, model, optimizer)


@record.case
def exception_on_rank_1(log):
    """Which rank 0, and plain PyTorch, do not have."""
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        if step == 1 and record.rank() == 1:
            try:
                (F.cross_entropy(model(x), y) + Failing.apply(model.head.bias).sum()).backward()
            except ValueError:
                continue
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


if __name__ == "__main__":
    record.main()
