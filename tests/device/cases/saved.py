"""What autograd saves of a forward pass, which CASTOR_ACTIVATIONS moves to the host and back."""
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from . import case
from .networks import CLASSES, FEATURES, GPT, LENGTH, MLP, WORDS, batch, train, train_on_texts


class Edited(nn.Module):
    """Writes where autograd has saved something: by rights in `relu_`, which saves what it leaves; else backward fails."""

    after = False

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, 512), nn.Linear(512, CLASSES)

    def forward(self, x):
        h = self.first(x).relu_()
        y = self.second(h)
        if self.after:
            h.mul_(2)
        return y


@case
def saved_and_edited(log, make):
    """PyTorch refuses to go back through what was changed since."""
    model = Edited().cuda()
    optimizer = make(model.parameters())
    for step, model.after in enumerate((False, False, True, False)):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        try:
            loss.backward()
        except RuntimeError as error:
            log.note("failed", float("modified by an inplace operation" in str(error)))
            continue
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


@case
def gone_back_twice(log, make):
    model = MLP(256).cuda()
    optimizer = make(model.parameters())
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        loss.backward()
        optimizer.step()
        log.step(loss, first=first[0])
    log.end(model, optimizer)


@case
def slopes_of_slopes(log, make):
    model = nn.Sequential(nn.Linear(FEATURES, 256), nn.Tanh(), nn.Linear(256, 1)).cuda()
    optimizer = make(model.parameters())
    for step in range(3):
        x = batch(step)[0].requires_grad_()
        optimizer.zero_grad()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        loss = slope.square().sum()
        loss.backward()
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


class Sloped(nn.Module):
    """Goes back within its forward pass."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh())

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = self.layers(x).square().sum()
            (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return energy, force


@case
def goes_back_within(log, make):
    model = Sloped().cuda()
    optimizer = make(model.parameters())
    for step in range(3):
        x, _ = batch(step)
        optimizer.zero_grad()
        energy, force = model(x)
        loss = (force.square().sum() + energy) / 100
        loss.backward()
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


@case
def passes_without_backward(log, make):
    """A pass that records and is dropped, one that is kept, and one of which half the results are used."""
    model = MLP(256).cuda()
    optimizer = make(model.parameters())
    kept = []
    for step in range(3):
        x, y = batch(step)
        model(x)
        kept.append(model(x))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x)[:4], y[:4])
        loss.backward()
        optimizer.step()
        log.step(loss, kept=kept[-1].detach())
    try:
        kept[0].sum().backward()
    except RuntimeError as error:
        log.note("failed", float("modified by an inplace operation" in str(error)))
    log.end(model, optimizer)


class Recomputing(nn.Module):
    """Of its layers one is recomputed, as is one in the old way, and of another the script keeps on the host what is saved."""

    def __init__(self):
        super().__init__()
        self.enter, self.layers, self.head = nn.Linear(FEATURES, 256), nn.ModuleList(nn.Linear(256, 256) for _ in range(4)), nn.Linear(256, CLASSES)
        self.register_buffer("mask", (torch.rand(1, 256) > 0.5).float())

    def forward(self, x):
        h = self.enter(x)
        h = checkpoint(lambda h: F.gelu(self.layers[0](h)), h, use_reentrant=False)
        h = checkpoint(lambda h: F.gelu(self.layers[1](h)), h, use_reentrant=True)
        with torch.autograd.graph.save_on_cpu():
            h = F.gelu(self.layers[2](h)) * self.mask
        h = h + F.gelu(self.layers[3](h)) * self.mask
        return self.head(h)


@case
def saved_in_all_ways(log, make):
    model = Recomputing().cuda()
    optimizer = make(model.parameters())
    train(log, model, optimizer, 4)


@case(without=("adagrad",))  # makes its states before there are shapes
def layers_that_learn_their_shapes(log, make):
    model = nn.Sequential(nn.LazyLinear(256), nn.LazyBatchNorm1d(), nn.GELU(), nn.LazyLinear(CLASSES)).cuda()
    train(log, model, make(model.parameters()), 3)


@case
def functions_of_models(log, make):
    """torch.func refuses hooks of autograd."""
    model = nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, CLASSES)).cuda()
    optimizer = make(model.parameters())
    for step in range(3):
        x, y = batch(step)
        weights = {name: p.detach() for name, p in model.named_parameters()}
        found = torch.func.grad(lambda weights: F.cross_entropy(torch.func.functional_call(model, weights, (x,)), y))(weights)
        for name, p in model.named_parameters():
            p.grad = found[name]
        optimizer.step()
        log.step(F.cross_entropy(model(x), y))
    log.end(model, optimizer)


@case
def models_in_threads(log, make):
    models = [MLP(256).cuda() for _ in range(2)]
    optimizers = [make(model.parameters()) for model in models]
    found = [[], []]

    def run(number):
        for step in range(3):
            x, y = batch(10 * number + step)
            optimizers[number].zero_grad()
            loss = F.cross_entropy(models[number](x), y)
            loss.backward()
            optimizers[number].step()
            found[number].append(loss.detach())

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for loss in (*found[0], *found[1]):
        log.step(loss)
    log.end(dict(zip("ab", models)), *optimizers)


@case
def fails_within_a_model(log, make):
    """The next pass is as it would be."""
    model = MLP(256).cuda()
    optimizer = make(model.parameters())
    for wrong in batch(0)[0][:, :3], batch(0)[0].cpu():
        try:
            model(wrong)
        except RuntimeError:
            log.note("failed", 1.0)
    train(log, model, optimizer, 3)


@case
def four_times_the_device(log, make):
    """A transformer whose passes save four times as much as a device has that a row gives it."""
    model = GPT(vocabulary=WORDS, context=LENGTH, layers=12).to("cuda")
    train_on_texts(log, model, make(model.parameters()), 2 * [48])
