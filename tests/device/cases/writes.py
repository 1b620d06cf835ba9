"""Weights that the script writes by itself, and memory that it arranges."""
import ctypes

import torch
import torch.nn as nn
import torch.nn.functional as F

from . import case
from .networks import CLASSES, FEATURES, MLP, batch, train


@case
def edited_in_place(log, make):
    """Between steps, in each of the ways in which a weight is written."""
    model = MLP().cuda()
    optimizer = make(model.parameters())
    for step in range(6):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            if step == 0:
                model.enter.weight.data.mul_(0.5)
            if step == 1:
                model.blocks[0][1].weight.copy_(torch.eye(768, device="cuda"))
            if step == 2:
                model.blocks[1][1].weight[10:20, ::3] = 0.25
            if step == 3:
                nn.init.orthogonal_(model.head.weight)
            if step == 4:
                model.blocks[1][1].weight.clamp_(-0.01, 0.01)
                model.enter.weight.copy_(torch.linspace(-0.1, 0.1, FEATURES * 768).view(768, FEATURES))  # from the host
            log.step(loss, after=F.cross_entropy(model(x), y))
    log.end(model, optimizer)


@case
def written_within_a_step(log, make):
    """A weight is written after forward has read it, and before and after backward does, with the version check of autograd gone round."""
    model = MLP().cuda()
    optimizer = make(model.parameters())
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        model.blocks[0][1].weight.data.mul_(0.9)
        loss.backward()
        model.blocks[1][1].weight.data.add_(0.01)
        again = F.cross_entropy(model(x), y)
        optimizer.step()
        log.step(loss, again=again)
    log.end(model, optimizer)


@case
def written_through_addresses(log, make):
    """Addresses of weights are in a table on the device, through which somebody writes whom nobody sees."""
    # Of weights alone, so that no kernel gets an address in their homes, and more of them than slots have room for.
    sizes = [FEATURES, *[544] * 8, CLASSES]
    model = nn.Sequential(*(nn.Linear(*pair, bias=False) for pair in zip(sizes, sizes[1:]))).cuda()
    optimizer = make(model.parameters())
    weights = list(model.parameters())
    table = torch.tensor([weight.data_ptr() for weight in weights], device="cuda")
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        before = F.cross_entropy(model(x), y)
        torch.cuda.synchronize()
        for address, weight in zip(table.tolist(), weights):
            values = (ctypes.c_float * weight.numel()).from_address(address)  # as a device's kernel finds them
            values[step::70] = [0.5 * value for value in values[step::70]]
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss, before=before)
    log.end(model, optimizer)


@case(without=("adamw-fused", "adamw-tensor", "sgd-fused"))
def data_replaced(log, make):
    model = MLP().cuda()
    optimizer = make(model.parameters())
    for step in range(5):
        if step == 2:
            model.blocks[0][1].weight.data = torch.randn(768, 768, device="cuda") / 28
        if step == 3:
            model.head.weight.data = model.head.weight.data.clone()
            model.enter.weight.data = model.enter.weight.data.t().contiguous().t()
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


@case(without=("adagrad",))
def parameter_replaced(log, make):
    """A new Parameter in the place of one that the optimizer keeps."""
    model = MLP().cuda()
    optimizer = make(model.parameters())
    for step in range(4):
        if step == 2:
            model.head.weight = nn.Parameter(torch.zeros(CLASSES, 768, device="cuda"))
            optimizer.add_param_group({"params": [model.head.weight]})
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


@case
def views_of_one_buffer(log, make):
    """All parameters lie in one flat tensor, and so do their gradients; the norm is that of the flat one."""
    model = MLP().cuda()
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    gradients = torch.zeros_like(flat)
    sizes = [parameter.numel() for parameter in model.parameters()]
    for parameter, part, gradient in zip(model.parameters(), flat.split(sizes), gradients.split(sizes)):
        parameter.data = part.view_as(parameter)
        parameter.grad = gradient.view_as(parameter)
    optimizer = make(model.parameters())
    for step in range(4):
        x, y = batch(step)
        gradients.zero_()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss, norm=gradients.norm(), weights=flat.norm())
    log.end(model, optimizer)


@case
def written_through_one_buffer(log, make):
    """Small parameters in one flat tensor, through which all of them are written between two passes."""
    model = MLP(width=256).cuda()
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    for parameter, part in zip(model.parameters(), flat.split([parameter.numel() for parameter in model.parameters()])):
        parameter.data = part.view_as(parameter)
    optimizer = make(model.parameters())
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        before = F.cross_entropy(model(x), y)
        with torch.no_grad():
            flat.mul_(0.9)
            flat.add_(1e-3)
        between = model(x).sum()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss, before=before, between=between)
    log.end(model, optimizer)


@case
def one_flat_parameter(log, make):
    """Layers compute with views of a single parameter, which is the one that is stepped."""
    flat = nn.Parameter(torch.randn(FEATURES * 1024 + 1024 * 1024 + 1024 * CLASSES, device="cuda") / 32)
    optimizer = make([flat])
    for step in range(4):
        x, y = batch(step)
        first, second, third = flat.split([FEATURES * 1024, 1024 * 1024, 1024 * CLASSES])
        optimizer.zero_grad()
        h = (x @ first.view(FEATURES, 1024)).relu()
        h = h + F.linear(h, second.view(1024, 1024)).tanh()
        loss = F.cross_entropy(h @ third.view(1024, CLASSES), y)
        loss.backward()
        optimizer.step()
        log.step(loss)
    log.end({"flat": nn.ParameterList([flat])}, optimizer)


@case
def aliases(log, make):
    """Views of weights that were taken before the first step see what the steps write."""
    model = MLP().cuda()
    weight = model.blocks[0][1].weight
    row, transposed, address = weight.detach()[5], weight.data.t(), weight.data_ptr()
    state = model.state_dict()
    optimizer = make(model.parameters())
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss, row=row.norm(), transposed=transposed[:, 5].norm(), state=state["blocks.0.1.weight"][5].norm())
    log.note("the weight is where it was", weight.data_ptr() == address or "castor moved it")
    log.end(model, optimizer)


@case
def gradients_written(log, make):
    """Noise, scaling and replacement of gradients before the step."""
    model = MLP().cuda()
    optimizer = make(model.parameters())
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for parameter in model.parameters():
            if step == 0:
                parameter.grad.add_(torch.randn_like(parameter), alpha=1e-3)
            if step == 1:
                torch._foreach_mul_([parameter.grad], 0.5)
            if step == 2:
                parameter.grad = parameter.grad.clone().neg_()
            if step == 3 and parameter.dim() == 1:
                parameter.grad = None
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


@case
def gradients_kept(log, make):
    """The script keeps a gradient beyond the step, and another one's memory."""
    model = MLP().cuda()
    optimizer = make(model.parameters())
    kept = []
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        kept.append(model.blocks[0][1].weight.grad)
        optimizer.step()
        log.step(loss, norms=torch.stack([gradient.norm() for gradient in kept]))
    log.end(model, optimizer)


@case
def written_by_a_copy(log, make):
    """A weight comes from pinned memory without a wait, and goes there."""
    model = MLP().cuda()
    optimizer = make(model.parameters())
    weight = model.blocks[1][1].weight
    host = torch.randn(768, 768).div_(28).pin_memory()
    for step in range(4):
        x, y = batch(step)
        with torch.no_grad():
            if step == 1:
                weight.copy_(host, non_blocking=True)
            if step == 2:
                host.copy_(weight, non_blocking=True)
            if step == 3:
                torch.cuda.synchronize()
                weight.copy_(host.mul_(0.5), non_blocking=True)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


@case
def pruned(log, make):
    """Masks of torch.nn.utils.prune: the weight is another tensor from then on."""
    from torch.nn.utils import prune

    model = MLP().cuda()
    prune.l1_unstructured(model.blocks[0][1], "weight", amount=0.5)
    train(log, model, make(model.parameters()))
