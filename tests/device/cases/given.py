"""Memory that other code has, or had: aliases by address, compiled steps, models that are gone, processes that the script starts."""
import gc
import subprocess
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from . import case
from .networks import FEATURES, MLP, batch, train
from .optimizers import GENERAL


def of_an_alias(log, make, alias_of):
    """A model that was made on the device: whoever has its addresses sees what the steps do, and the model what is written there."""
    with torch.device("cuda"):
        model = MLP()
    weight = model.blocks[0][1].weight
    alias = alias_of(weight)
    optimizer = make(model.parameters())
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.note("by the alias", alias)
        alias.mul_(0.9)
        log.step(loss, after=F.cross_entropy(model(x), y))
    log.end(model, optimizer)


@case
def given_by_dlpack(log, make):
    of_an_alias(log, make, lambda weight: torch.from_dlpack(weight.detach()))


@case
def given_as_an_array(log, make):
    class Array:
        pass

    def alias_of(weight):
        Array.__cuda_array_interface__ = weight.detach().__cuda_array_interface__
        return torch.as_tensor(Array(), device="cuda")

    of_an_alias(log, make, alias_of)


@case
def given_as_a_number(log, make):
    """As a binding in Python does, which hands its library an address."""
    def alias_of(weight):
        class Array:
            __cuda_array_interface__ = {"shape": tuple(weight.shape), "typestr": "<f4", "data": (weight.data_ptr(), False), "version": 2}

        return torch.as_tensor(Array(), device="cuda")

    of_an_alias(log, make, alias_of)


@case
def models_in_turn(log, make):
    """Each is dropped before the next one is made, and its memory given back."""
    before = torch.cuda.memory_reserved()
    for width in (256, 768, 512):
        model = MLP(width).cuda()
        optimizer = make(model.parameters())
        for step in range(2):
            x, y = batch(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            log.step(loss)
        if width != 512:
            del model, optimizer, loss
            gc.collect()
            torch.cuda.empty_cache()
            log.note("MiB reserved", torch.cuda.memory_reserved() - before >> 20)
    log.end(model, optimizer)


@case(optimizers=tuple(name for name in GENERAL if name in ("adamw", "momentum")))
def compiled_steps(log, make):
    """The compiler traces a step as it is: its bits are not those of a step that is called."""
    model = MLP().cuda()
    optimizer = make(model.parameters())

    @torch.compile(backend="eager")
    def compiled():
        optimizer.step()
        optimizer.zero_grad()

    for step in range(4):
        x, y = batch(step)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        compiled()
        log.step(loss, norm=norm)
    log.end(model, optimizer)


TRAINED = f"""
import torch
torch.set_num_threads(1)
torch.manual_seed(5)
model = torch.nn.Sequential(*(torch.nn.Linear({FEATURES}, {FEATURES}) for _ in range(6))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(8, {FEATURES}).cuda()).square().mean()
    loss.backward()
    optimizer.step()
print(repr(loss.item()), [repr(p.double().sum().item()) for p in model.parameters()])
"""


@case
def beside_a_process(log, make):
    """Which trains by itself, as what a launcher starts does."""
    done = subprocess.run([sys.executable, "-c", TRAINED], capture_output=True, text=True, timeout=100)
    log.note("the process", (done.returncode, done.stdout, [line for line in done.stderr.splitlines() if "Error" in line]))
    model = MLP(256).cuda()
    train(log, model, make(model.parameters()), steps=2)
