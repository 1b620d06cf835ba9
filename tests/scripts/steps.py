"""The step that most scripts take between their own: a batch, a loss, its gradients, the optimizer."""

import torch.nn.functional as F

from model import batch


def train_step(model, optimizer, step):
    x, y = batch(step)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def train(log, model, optimizer, steps):
    for step in steps:
        loss = train_step(model, optimizer, step)
        log.step(loss, model, optimizer)
