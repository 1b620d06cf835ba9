"""How a model and its weights come onto the device."""
import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from . import case
from .networks import FEATURES, MLP, Convolutions, batch, images, train


@case
def made_on_device(log, make):
    with torch.device("cuda"):
        model = MLP()
    train(log, model, make(model.parameters()))


@case
def made_on_device_by_default(log, make):
    torch.set_default_device("cuda")
    try:
        model = MLP(depth=1)
    finally:
        torch.set_default_device(None)
    train(log, model, make(model.parameters()), 3)


@case(optimizers=("momentum", "adamw"))
def written_on_a_stream(log, make):
    """Weights still come by another stream when the optimizer gets them."""
    nn.Linear(FEATURES, FEATURES).cuda()  # what is done once for a device is done
    with torch.device("cuda"):
        model = MLP()
    source = [torch.randn(parameter.shape).div_(16).pin_memory() for parameter in model.parameters()]
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside), torch.no_grad():
        for parameter, values in reversed(list(zip(model.parameters(), source))):
            parameter.copy_(values, non_blocking=True)
    optimizer = make(model.parameters())
    torch.cuda.current_stream().wait_stream(beside)
    train(log, model, optimizer)


@case
def to_empty(log, make):
    with torch.device("meta"):
        model = MLP()
    model.to_empty(device="cuda")
    model.seen.zero_()
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    train(log, model, make(model.parameters()))


@case
def assigned(log, make):
    weights = {name: value.cuda() for name, value in MLP().state_dict().items()}
    with torch.device("meta"):
        model = MLP()
    model.load_state_dict(weights, assign=True)
    del weights
    train(log, model, make(model.parameters()))


@case
def loaded_onto_device(log, make):
    path = os.path.join(log.folder, "weights.pt")
    torch.save(MLP().state_dict(), path)
    model = MLP().cuda()
    model.load_state_dict(torch.load(path, map_location="cuda"))
    train(log, model, make(model.parameters()))


@case
def loaded_whole(log, make):
    """The module itself is in the file, with its device."""
    path = os.path.join(log.folder, "model.pt")
    torch.save(MLP().cuda(), path)
    model = torch.load(path, weights_only=False)
    train(log, model, make(model.parameters()))


@case(optimizers=("momentum", "adamw"))
def optimizer_before_device(log, make):
    """The optimizer has the parameters already when they move, which is allowed while it has no states."""
    model = MLP()
    optimizer = make(model.parameters())
    model.to("cuda")
    train(log, model, optimizer)


@case(optimizers=("sgd",))
def trains_on_both_sides(log, make):
    """On the device, on the CPU, and so on, with one optimizer of before, which has no states."""
    model = MLP()
    optimizer = make(model.parameters())
    for step, where in enumerate(("cuda", "cuda", "cpu", "cpu", "cuda")):
        model.to(where)
        x, y = (tensor.to(where) for tensor in batch(step))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


@case
def deep_copied(log, make):
    """An average of the weights that is kept by hand."""
    model = MLP().to("cuda")
    average = copy.deepcopy(model).requires_grad_(False).eval()
    optimizer = make(model.parameters())
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for kept, current in zip(average.parameters(), model.parameters()):
                kept.lerp_(current, 0.1)
            log.step(loss, average=F.cross_entropy(average(x), y))
    log.end({"model": model, "average": average}, optimizer)


@case
def averaged(log, make):
    model = Convolutions().to("cuda")
    averages = [AveragedModel(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))]
    optimizer = make(model.parameters())
    for step in range(4):
        x, y = images(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        for average in averages:
            average.update_parameters(model)
        log.step(loss)
    update_bn([images(step)[0] for step in range(2)], averages[0])
    log.end({"model": model, "swa": averages[0], "ema": averages[1]}, optimizer)


@case
def moved_away_and_back(log, make):
    """To the host between two phases, to make room."""
    model = MLP().cuda()
    optimizer = make(model.parameters())
    for step in range(4):
        if step == 2:
            model.cpu()
            torch.cuda.empty_cache()
            model.cuda()
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


@case
def made_again(log, make):
    """The first model and its optimizer are gone when the second comes."""
    for fold in range(2):
        model = MLP().cuda()
        optimizer = make(model.parameters())
        for step in range(2):
            x, y = batch(10 * fold + step)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            log.step(loss)
    log.end(model, optimizer)


@case(without=("adagrad",))
def grows(log, make):
    """A layer that comes later, and one that is replaced."""
    model = MLP(depth=1).cuda()
    optimizer = make(model.parameters())
    for step in range(4):
        if step == 1:
            model.blocks.append(nn.Sequential(nn.LayerNorm(768), nn.Linear(768, 768), nn.GELU()).cuda())
            optimizer.add_param_group({"params": model.blocks[-1].parameters()})
        if step == 2:
            model.head = nn.Linear(768, 16).cuda()
            optimizer.add_param_group({"params": model.head.parameters()})
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)
