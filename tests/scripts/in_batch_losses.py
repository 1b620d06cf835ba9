"""Losses that look at more than one sample of a batch, or at how many there are: a part of the batch has another one."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import record
from model import CLASSES, FEATURES

DIMENSIONS = 8
MARGIN = 0.5


def batches(count=32, size=8, drop_last=True):
    """Two views of each sample, and its class."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, FEATURES, generator=generator)
    noise = 0.1 * torch.randn(count, FEATURES, generator=generator)
    y = torch.randint(0, CLASSES, (count,), generator=generator)
    return DataLoader(TensorDataset(x, x + noise, y), size, shuffle=True, drop_last=drop_last)


def train(log, loss_of, optimizer=lambda p: torch.optim.SGD(p, lr=0.05), loader=None):
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, DIMENSIONS))
    optimizer = optimizer(model.parameters())
    for a, b, y in loader or batches():
        optimizer.zero_grad()
        loss = loss_of(model, a, b, y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


def unit(x):
    return F.normalize(x, dim=1)


@record.case
def logsumexp(log):
    def loss(model, a, b, y):
        scores = unit(model(a)) @ unit(model(b)).T / 0.1
        return (torch.logsumexp(scores, dim=1) - scores.diagonal()).mean()

    train(log, loss)


@record.case
def softmax_by_hand(log):
    def loss(model, a, b, y):
        scores = (unit(model(a)) @ unit(model(b)).T / 0.1).exp()
        return -(scores.diagonal() / scores.sum(1)).log().mean()

    train(log, loss, lambda p: torch.optim.Adam(p, lr=1e-3))


@record.case
def simclr(log):
    def loss(model, a, b, y):
        z = unit(torch.cat([model(a), model(b)]))
        scores = (z @ z.T / 0.5).masked_fill(torch.eye(len(z), dtype=torch.bool), float("-inf"))
        return F.cross_entropy(scores, torch.arange(len(z)).roll(len(a)))

    train(log, loss)


@record.case
def siglip(log):
    def loss(model, a, b, y):
        scores = 10 * unit(model(a)) @ unit(model(b)).T - 10
        return -F.logsigmoid((2 * torch.eye(len(a)) - 1) * scores).sum() / len(a)

    train(log, loss)


@record.case
def products_by_einsum(log):
    def loss(model, a, b, y):
        scores = torch.einsum("id,jd->ij", model(a), model(b))
        return F.cross_entropy(scores, torch.arange(len(a)))

    train(log, loss)


@record.case
def matrix_of_cosines(log):
    def loss(model, a, b, y):
        scores = F.cosine_similarity(model(a)[:, None], model(b)[None], dim=2) / 0.1
        return F.cross_entropy(scores, torch.arange(len(a)))

    train(log, loss)


@record.case
def negatives_from_elsewhere_too(log):
    queue = torch.randn(5, DIMENSIONS)

    def loss(model, a, b, y):
        scores = model(a) @ torch.cat([model(b), queue]).T
        return F.cross_entropy(scores, torch.arange(len(a)))

    train(log, loss)


@record.case
def supervised_contrast(log):
    def loss(model, a, b, y):
        z, labels = unit(torch.cat([model(a), model(b)])), torch.cat([y, y])
        others = ~torch.eye(len(z), dtype=torch.bool)
        scores = z @ z.T / 0.5
        of_class = (labels[:, None] == labels[None]) & others
        likelihood = scores - torch.logsumexp(scores.masked_fill(~others, float("-inf")), dim=1, keepdim=True)
        return -((likelihood * of_class).sum(1) / of_class.sum(1)).mean()

    train(log, loss)


@record.case
def barlow_twins(log):
    def loss(model, a, b, y):
        za, zb = model(a), model(b)
        correlation = ((za - za.mean(0)) / za.std(0)).T @ ((zb - zb.mean(0)) / zb.std(0)) / len(a)
        off = correlation.pow(2).sum() - correlation.diagonal().pow(2).sum()
        return (1 - correlation.diagonal()).pow(2).sum() + 0.01 * off

    train(log, loss)


@record.case
def vicreg(log):
    def loss(model, a, b, y):
        za, zb = model(a), model(b)
        centered = za - za.mean(0)
        covariance = centered.T @ centered / (len(a) - 1)
        spread = F.relu(1 - (za.var(0) + 1e-4).sqrt()).mean()
        return F.mse_loss(za, zb) + spread + (covariance.pow(2).sum() - covariance.diagonal().pow(2).sum()) / DIMENSIONS

    train(log, loss)


@record.case
def hardest_triplets(log):
    def loss(model, a, b, y):
        distance = torch.cdist(model(a), model(b))
        same = torch.eye(len(a), dtype=torch.bool)
        hardest = distance.masked_fill(same, float("inf")).min(1).values
        return F.relu(distance.diagonal() - hardest + MARGIN).mean()

    train(log, loss)


@record.case
def ranked_among_negatives(log):
    """As in sentence-transformers: the other sentences of the batch are the wrong answers."""

    def loss(model, a, b, y):
        return F.cross_entropy(unit(model(a)) @ unit(model(b)).T * 20.0, torch.arange(len(a)))

    train(log, loss)


@record.case
def divided_by_the_largest(log):
    def loss(model, a, b, y):
        return F.cross_entropy(model(a / a.abs().max()), y)

    train(log, loss)


@record.case
def mean_that_miscounts(log):
    def loss(model, a, b, y):
        return F.cross_entropy(model(a), y, reduction="sum") / (len(y) + 1)

    train(log, loss)


@record.case
def negatives_drawn_from_the_batch(log):
    def loss(model, a, b, y):
        z = model(a)
        return F.triplet_margin_loss(z, model(b), z[torch.randperm(len(a))])

    train(log, loss)


@record.case
def penalty_of_the_batch_mean(log):
    def loss(model, a, b, y):
        z = model(a)
        return F.cross_entropy(z, y) + z.mean(0).pow(2).sum()

    train(log, loss)


@record.case
def each_for_itself(log):
    """Nothing is wrong with this one: distances of pairs."""

    def loss(model, a, b, y):
        return F.triplet_margin_loss(model(a), model(b), model(a).detach() + 1.0) + F.mse_loss(model(a), model(b))

    train(log, loss, loader=batches(30, 8, drop_last=False))


if __name__ == "__main__":
    record.main()
