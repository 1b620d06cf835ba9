"""Types of numbers."""
import torch
import torch.nn as nn
import torch.nn.functional as F

from . import case
from .networks import GPT, LENGTH, MLP, batch, tokens, train


@case(without=("sgd-fused",))
def scaled(log, make):
    """float16 under autocast, with a scaler whose first scale overflows."""
    model = MLP().cuda()
    optimizer = make(model.parameters())
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**18, growth_interval=2)
    for step in range(6):
        x, y = batch(step)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        log.step(loss, norm=norm, scale=scaler.get_scale())
    log.end(model, optimizer)


@case
def scaled_alone(log, make):
    """The scaler divides inside of step."""
    model = MLP().cuda()
    optimizer = make(model.parameters())
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        log.step(loss)
    log.end(model, optimizer)


@case
def autocast(log, make):
    model = GPT(context=LENGTH).cuda()
    optimizer = make(model.parameters())
    for step in range(4):
        x, y = tokens(step)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            _, loss = model(x, y)
        loss.backward()
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


@case(without=("sgd-fused",))
def bfloat16(log, make):
    model = MLP(width=1024).to("cuda", torch.bfloat16)
    train(log, model, make(model.parameters()), draw=lambda step: (batch(step)[0].bfloat16(), batch(step)[1]))


@case(without=("sgd-fused",))
def half(log, make):
    model = MLP(width=1024).cuda().half()
    divides = log.optimizer.startswith(("ada", "amsgrad", "nadam", "rmsprop")) and log.optimizer != "adafactor"
    optimizer = make(model.parameters(), **{"eps": 1e-4} if divides else {})
    train(log, model, optimizer, draw=lambda step: (batch(step)[0].half(), batch(step)[1]))


@case
def double(log, make):
    model = MLP(width=512).double().cuda()
    train(log, model, make(model.parameters()), draw=lambda step: (batch(step)[0].double(), batch(step)[1]))


@case
def masters(log, make):
    """float32 copies that the optimizer steps, of parameters in bfloat16."""
    model = MLP().to("cuda").bfloat16()
    masters = [nn.Parameter(parameter.detach().float()) for parameter in model.parameters()]
    optimizer = make(masters)
    for step in range(4):
        x, y = batch(step)
        model.zero_grad()
        loss = F.cross_entropy(model(x.bfloat16()).float(), y)
        loss.backward()
        for master, parameter in zip(masters, model.parameters()):
            master.grad = parameter.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters()):
                parameter.copy_(master)
        log.step(loss)
    log.end({"model": model, "masters": nn.ParameterList(masters)}, optimizer)
