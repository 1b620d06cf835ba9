"""Gradients that a script takes with torch.autograd.grad, of parameters and of what it has made of them."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call

import record

INPUTS, STEPS = 6, 5


def task(step, rows):
    """Inputs, and a wave of their sum."""
    generator = torch.Generator().manual_seed(1000 * rows + step)
    x = torch.randn(rows, INPUTS, generator=generator)
    return x, torch.sin(x.sum(1, keepdim=True) + step)


def made():
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(INPUTS, 16), nn.Tanh(), nn.Linear(16, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.05), list(model.parameters())


def adapted(log, second_order):
    """A few steps of weights that belong to a task, and the gradient of what they lead to."""
    model, optimizer, _ = made()
    for step in range(STEPS):
        optimizer.zero_grad()
        fast = dict(model.named_parameters())
        x, y = task(step, 8)
        for _ in range(3):
            loss = F.mse_loss(functional_call(model, fast, (x,)), y)
            slopes = torch.autograd.grad(loss, list(fast.values()), create_graph=second_order)
            fast = {name: p - 0.1 * slope for (name, p), slope in zip(fast.items(), slopes)}
        x, y = task(step + STEPS, 7)
        loss = F.mse_loss(functional_call(model, fast, (x,)), y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def adapted_in_the_second_order(log):
    """MAML."""
    adapted(log, True)


@record.case
def adapted_in_the_first_order(log):
    adapted(log, False)


def with_slopes(log, rows, added=0.0, curved=0.0):
    """Steps in which the squares of the slopes are added to the loss, and the product of the Hessian and the weights to the gradient."""
    model, optimizer, parameters = made()
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = task(step, rows)
        loss = F.mse_loss(model(x), y)
        slopes = torch.autograd.grad(loss, parameters, create_graph=True)
        curvature = ()
        if curved:
            curvature = torch.autograd.grad(sum((slope * p.detach()).sum() for slope, p in zip(slopes, parameters)), parameters, retain_graph=True)
        if added:
            loss = loss + added * sum(slope.square().sum() for slope in slopes)
        loss.backward()
        for p, c in zip(parameters, curvature):
            p.grad += curved * c
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def penalty_of_slopes(log):
    with_slopes(log, 8, added=0.1)


@record.case
def curvature_along_the_weights(log):
    with_slopes(log, 9, curved=0.01)


@record.case
def conflicts_of_two_losses(log):
    """PCGrad: one loss's gradient without its part against the other's."""
    model, optimizer, parameters = made()
    for step in range(STEPS):
        x, y = task(step, 8)
        out = model(x)
        losses = F.mse_loss(out, y), out.abs().mean()
        first, second = (torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses)
        for p, a, b in zip(parameters, first, second):
            p.grad = a + b - min((a * b).sum(), torch.zeros(())) / b.square().sum() * b
        optimizer.step()
        log.step(losses[0], model, optimizer)


@record.case
def updates_written_out(log):
    model, _, parameters = made()
    for step in range(STEPS):
        x, y = task(step, 8)
        loss = F.mse_loss(model(x), y)
        slopes = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for p, slope in zip(parameters, slopes):
                p.sub_(0.05 * slope)
        log.step(loss, model)


@record.case
def weights_of_losses_by_their_slopes(log):
    """GradNorm: the weights of two losses learn from the lengths of the last layer's gradients."""
    model, _, parameters = made()
    weights = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([*parameters, weights], lr=0.05)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = task(step, 8)
        out = model(x)
        losses = torch.stack([F.mse_loss(out, y), F.smooth_l1_loss(out, 2 * y)])
        lengths = torch.stack([
            weight * torch.autograd.grad(loss, parameters[-2], retain_graph=True, create_graph=True)[0].norm() for weight, loss in zip(weights, losses)
        ])
        loss = (weights.detach() * losses).sum()
        loss.backward(retain_graph=True)
        weights.grad = torch.autograd.grad((lengths - lengths.mean().detach()).abs().sum(), weights)[0]
        optimizer.step()
        log.note("weights", weights.detach().clone())
        log.step(loss, model, optimizer)


if __name__ == "__main__":
    record.main()
