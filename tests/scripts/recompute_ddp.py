"""Activation checkpointing, in its two implementations."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import record
from model import CLASSES, FEATURES, GPT, batch


class Layers(nn.Module):
    """Every layer of `recomputed` is recomputed in backward."""

    def __init__(self, recomputed, reentrant, twice=False):
        super().__init__()
        sizes = [FEATURES, 600, 600, 600]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.head = nn.Linear(600, CLASSES)
        self.recomputed, self.reentrant, self.twice = recomputed, reentrant, twice

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            def run(v, layer=layer):
                return torch.tanh(layer(v))

            times = 2 if self.twice and number == 1 else 1
            for _ in range(times):
                x = checkpoint(run, x, use_reentrant=self.reentrant) if number in self.recomputed else run(x)
        if "head" in self.recomputed:
            return checkpoint(self.head, x, use_reentrant=self.reentrant)
        return self.head(x)


def train(log, network, steps=3, **settings):
    model = DistributedDataParallel(network, **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        x, y = batch(step)
        x.requires_grad_(True)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def plain(log):
    train(log, Layers({1}, False))


@record.case
def plain_everywhere(log):
    train(log, Layers({0, 1, 2, "head"}, False))


@record.case
def reentrant(log):
    train(log, Layers({1}, True))


@record.case
def reentrant_everywhere(log):
    """The outermost backward returns last; inner engines return before it."""
    train(log, Layers({0, 1, 2, "head"}, True))


@record.case
def reentrant_twice_in_a_static_graph(log):
    """One parameter becomes ready twice, which plain PyTorch allows under static_graph only."""
    train(log, Layers({1}, True, twice=True), static_graph=True)


@record.case
def sequential(log):
    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            sizes = [FEATURES, 600, 600, 600, CLASSES]
            self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in zip(sizes, sizes[1:])))

        def forward(self, x):
            return checkpoint_sequential(self.layers, 2, x, use_reentrant=False)

    train(log, Chain())


@record.case
def gpt_blocks(log):
    """A GPT whose blocks are all recomputed, with accumulation under no_sync."""

    class Recomputing(GPT):
        def forward(self, tokens, targets=None):
            x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())

    model = DistributedDataParallel(Recomputing(context=16, layers=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(2):
        optimizer.zero_grad()
        tokens = (batch(step, 2, 17)[0] * 40).long().clamp(-127, 127) + 127
        with model.no_sync():
            model(tokens[:, :-1], tokens[:, 1:]).backward()
        tokens = tokens.flip(1)
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


if __name__ == "__main__":
    record.main()
