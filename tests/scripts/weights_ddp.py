"""What scripts do with parameters outside the optimizer: averages, swaps, edits, replaced storage, tied weights."""

import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

import record
from model import CLASSES, GPT, Classifier, batch
from steps import train_step


def start(optimizer_class=torch.optim.AdamW, lr=1e-3, **settings):
    model = DistributedDataParallel(Classifier())
    return model, optimizer_class(model.parameters(), lr=lr, **settings)


@record.case
def ema_swapped_in_and_out(log):
    """Every rank evaluates with the average, then goes on with its weights."""
    model, optimizer = start()
    average = [p.detach().clone() for p in model.parameters()]
    for step in range(4):
        loss = train_step(model, optimizer, step)
        with torch.no_grad():
            for a, p in zip(average, model.parameters()):
                a.lerp_(p, 0.1)
        kept = [p.detach().clone() for p in model.parameters()]
        with torch.no_grad():
            for a, p in zip(average, model.parameters()):
                p.copy_(a)
            x, y = batch(step + 500)
            score = F.cross_entropy(model.module(x), y)
            log.note("validation loss", score)
            log.parameters(model, "averaged parameters")
            for k, p in zip(kept, model.parameters()):
                p.copy_(k)
        log.step(loss, model, optimizer)


@record.case
def ema_swapped_on_rank_0(log):
    """Rank 0 alone evaluates with changed weights, and copies the old ones back."""
    model, optimizer = start()
    for step in range(4):
        loss = train_step(model, optimizer, step)
        if dist.get_rank() == 0:
            kept = [p.detach().clone() for p in model.parameters()]
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(0.5)
                log.parameters(model, "halved parameters")
                log.note("validation loss", F.cross_entropy(model.module(batch(900)[0]), batch(900)[1]))
                for k, p in zip(kept, model.parameters()):
                    p.copy_(k)
        log.step(loss, model, optimizer)


@record.case
def ema_by_data_swap(log):
    """Swaps storages, not values: p.data, average.data = average.data, p.data."""
    model, optimizer = start()
    average = copy.deepcopy(model.module)
    for step in range(4):
        loss = train_step(model, optimizer, step)
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.module.parameters()):
                a.mul_(0.9).add_(p, alpha=0.1)
        for _ in range(2):
            for a, p in zip(average.parameters(), model.module.parameters()):
                a.data, p.data = p.data, a.data
            log.parameters(model, "swapped parameters")
        log.step(loss, model, optimizer)
    log.parameters(average, "averaged parameters")


@record.case
def averaged_model(log):
    model, optimizer = start(torch.optim.SGD, 0.1)
    average = AveragedModel(model)
    ema = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for step in range(4):
        loss = train_step(model, optimizer, step)
        average.update_parameters(model)
        ema.update_parameters(model.module)
        log.step(loss, model, optimizer)
    log.parameters(average)
    log.parameters(ema)


@record.case
def swa_with_batch_norm(log):
    """Stochastic weight averaging, with the running statistics computed anew."""
    torch.manual_seed(5)
    network = nn.Sequential(nn.Linear(32, 600, bias=False), nn.BatchNorm1d(600), nn.ReLU(), nn.Linear(600, CLASSES))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = AveragedModel(network)
    for step in range(3):
        loss = train_step(model, optimizer, step)
        average.update_parameters(network)
        log.step(loss, model, optimizer)
    update_bn([batch(step)[0] for step in range(3)], average)
    log.step(None, average)


@record.case
def edited_between_steps(log):
    """Weight decay by hand on parameters that the optimizer steps, and on one whose gradient is taken away."""
    model, optimizer = start(torch.optim.SGD, 0.1, momentum=0.9)
    for step in range(5):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if step == 2:
            model.module.inner.weight.grad = None
        with torch.no_grad():
            model.module.inner.weight.mul_(0.99)
            model.module.deep.bias.add_(0.01)
        optimizer.step()
        model.module.deep.weight.data[3].zero_()
        log.step(loss, model, optimizer)


@record.case
def edited_through_data(log):
    model, optimizer = start()
    for step in range(4):
        loss = train_step(model, optimizer, step)
        for p in model.parameters():
            p.data.mul_(0.999)
        model.module.wide.weight.data /= model.module.wide.weight.data.norm(dim=1, keepdim=True).clamp_min(1.0)
        log.step(loss, model, optimizer)


@record.case
def edited_between_forward_and_backward(log):
    """Perturbed for the forward pass, restored before the step."""
    model, optimizer = start(torch.optim.SGD, 0.1)
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        noise = torch.full_like(model.module.deep.weight, 0.01)
        model.module.deep.weight.data.add_(noise)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        model.module.deep.weight.data.sub_(noise)
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def data_replaced(log):
    model, optimizer = start(torch.optim.SGD, 0.1, momentum=0.9)
    for step in range(4):
        loss = train_step(model, optimizer, step)
        if step == 1:
            for p in model.parameters():
                p.data = p.data.clone() * 1.01
        log.step(loss, model, optimizer)


@record.case
def data_replaced_by_views_of_one_buffer(log):
    """All parameters as views of one flat tensor, made after the wrapper."""
    model, optimizer = start()
    for step in range(4):
        if step == 1:
            parameters = list(model.parameters())
            flat = torch.cat([p.detach().reshape(-1) for p in parameters])
            at = 0
            for p in parameters:
                p.data = flat[at : at + p.numel()].view_as(p)
                at += p.numel()
        loss = train_step(model, optimizer, step)
        if step > 1:
            log.note("flat follows", torch.equal(flat[: parameters[0].numel()].view_as(parameters[0]), parameters[0]))
        log.step(loss, model, optimizer)


@record.case
def set_by_assignment(log):
    """load_state_dict(assign=True) makes new Parameter objects before the optimizer is built."""
    network = Classifier()
    torch.manual_seed(99)
    network.load_state_dict(Classifier().state_dict(), assign=True)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(3):
        loss = train_step(model, optimizer, step)
        log.step(loss, model, optimizer)


@record.case
def alias_made_before_the_wrapper(log):
    network = Classifier()
    state, flat = network.state_dict(), network.deep.weight.detach().view(-1)
    row = network.deep.weight.data[5]
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = train_step(model, optimizer, step)
        log.note("alias", [flat, row, state["wide.weight"], state["inner.bias"]])
        log.step(loss, model, optimizer)


@record.case
def ranks_start_apart(log):
    """Each rank has weights of its own before the wrapper: rank 0's win."""
    torch.manual_seed(100 + dist.get_rank())
    model = DistributedDataParallel(Classifier())
    log.parameters(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        loss = train_step(model, optimizer, step)
        log.step(loss, model, optimizer)


@record.case
def optimizer_before_wrapper(log):
    network = Classifier()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    model = DistributedDataParallel(network)
    for step in range(3):
        loss = train_step(model, optimizer, step)
        log.step(loss, model, optimizer)


@record.case
def tied_by_object(log):
    model = DistributedDataParallel(GPT(context=16, layers=1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        tokens = torch.randint(0, 256, (2, 17), generator=generator)
        optimizer.zero_grad()
        _, loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def tied_by_data(log):
    """Two Parameters over one storage, each with a gradient of its own."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Tanh(), nn.Linear(64, 64, bias=False))
    network[2].weight.data = network[0].weight.data
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        x, _ = batch(step, features=64)
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        log.note("still tied", torch.equal(network[0].weight, network[2].weight))
        log.note("one storage", network[0].weight.data_ptr() == network[2].weight.data_ptr())
        log.step(loss, model, optimizer)


@record.case
def transposed_parameter(log):
    """A parameter that is not contiguous."""
    network = Classifier()
    network.deep.weight = nn.Parameter(network.deep.weight.detach().t())
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(3):
        loss = train_step(model, optimizer, step)
        log.step(loss, model, optimizer)


@record.case
def channels_last(log):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(4, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.Flatten(), nn.Linear(64 * 16, CLASSES))
    model = DistributedDataParallel(network.to(memory_format=torch.channels_last))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        x, y = batch(step, features=256)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.view(-1, 4, 8, 8).to(memory_format=torch.channels_last)), y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def layout_changed_after_wrapping(log):
    """to() after the wrapper replaces p.data where it changes anything."""
    model, optimizer = start(torch.optim.SGD, 0.1, momentum=0.9)
    loss = train_step(model, optimizer, 0)
    log.step(loss, model, optimizer)
    model.module.float()
    model.to(memory_format=torch.contiguous_format)
    loss = train_step(model, optimizer, 1)
    log.step(loss, model, optimizer)


@record.case
def parametrized(log):
    """Weight norm: the weight that is used is computed from two parameters."""
    network = Classifier()
    nn.utils.parametrizations.weight_norm(network.deep)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(3):
        loss = train_step(model, optimizer, step)
        log.step(loss, model, optimizer)


@record.case
def functional_call(log):
    """torch.func over the trained weights."""
    model, optimizer = start()
    loss = train_step(model, optimizer, 0)
    x, y = batch(1)
    weights = {name: p.detach() for name, p in model.module.named_parameters()}
    slopes = torch.func.grad(lambda w: F.cross_entropy(torch.func.functional_call(model.module, w, (x,)), y))(weights)
    log.note("slopes", slopes)
    log.step(loss, model, optimizer)


if __name__ == "__main__":
    record.main()
