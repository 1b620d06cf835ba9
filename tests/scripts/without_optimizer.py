"""Scripts that step their parameters themselves, with a DataLoader."""

import torch
import torch.nn.functional as F

import record
from loops import samples
from model import CLASSES, FEATURES, Classifier
from torch.utils.data import DataLoader

RATE = 0.1


def batches(count=32, size=8):
    return DataLoader(samples(count), size, shuffle=True)


@record.case
def data_added_to(log):
    model = Classifier()
    for x, y in batches():
        loss = F.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-RATE)
        log.step(loss, model)


@record.case
def under_no_grad(log):
    model = Classifier()
    for x, y in batches(30):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= RATE * p.grad
                p.grad = None
        log.step(loss, model)


class Momentum:
    """Derives from nothing."""

    def __init__(self, parameters, rate=RATE, momentum=0.9):
        self.parameters, self.rate, self.momentum = list(parameters), rate, momentum
        self.velocities = [torch.zeros_like(p) for p in self.parameters]

    def zero_grad(self):
        for p in self.parameters:
            if p.grad is not None:
                p.grad.zero_()

    @torch.no_grad()
    def step(self):
        for p, v in zip(self.parameters, self.velocities):
            v.mul_(self.momentum).add_(p.grad)
            p.sub_(self.rate * v)


@record.case
def class_of_its_own(log):
    model = Classifier()
    optimizer = Momentum(model.parameters())
    for epoch in range(2):
        for x, y in batches():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            log.step(loss, model)


@record.case
def tensors_alone(log):
    """No module at all."""
    w = torch.zeros(FEATURES, CLASSES, requires_grad=True)
    b = torch.zeros(CLASSES, requires_grad=True)
    for x, y in batches():
        loss = F.cross_entropy(x @ w + b, y)
        loss.backward()
        with torch.no_grad():
            for p in (w, b):
                p -= RATE * p.grad
                p.grad.zero_()
        log.step(loss)
        log.note("weights", [w, b])


@record.case
def some_in_an_optimizer(log):
    """The first layer by hand, the others by torch.optim; the norm is of all."""
    model = Classifier()
    first, *others = model.parameters()
    optimizer = torch.optim.Adam(others, lr=1e-3)
    for x, y in batches():
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        first.data.add_(first.grad, alpha=-RATE)
        log.step(loss, model, optimizer)


@record.case
def gradient_of_the_input(log):
    """Adversarial samples: their gradients are the samples' own."""
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for x, y in batches():
        near = x.clone().requires_grad_()
        F.cross_entropy(model(near), y).backward()
        optimizer.zero_grad()
        loss = F.cross_entropy(model((near + 0.01 * near.grad.sign()).detach()), y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


if __name__ == "__main__":
    record.main()
