"""One process that draws its batches by hand, in the habits of small research repositories.

Castor cannot split such batches: each rank draws its own, and N times the data goes into every step.
"""

import torch
import torch.nn.functional as F

import record
from model import CLASSES, FEATURES, GPT, Classifier
from text import corpus


@record.case
def random_windows(log):
    """Windows of a text at random places."""
    data = corpus()
    model = GPT(context=32, layers=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(5):
        starts = torch.randint(len(data) - 33, (8,))
        x = torch.stack([data[i : i + 32] for i in starts])
        y = torch.stack([data[i + 1 : i + 33] for i in starts])
        optimizer.zero_grad(set_to_none=True)
        _, loss = model(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def the_same_batch_each_time(log):
    """A fixed batch, made before training: every rank has the same, so the result is the single process's."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(16, FEATURES, generator=generator), torch.randint(0, CLASSES, (16,), generator=generator)
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def slices_in_order(log):
    """Slices of a tensor in a fixed order: the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, FEATURES, generator=generator), torch.randint(0, CLASSES, (40,), generator=generator)
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for start in range(0, 40, 10):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[start : start + 10]), y[start : start + 10])
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


if __name__ == "__main__":
    record.main()
