"""Ways of drawing batches and of stepping, in which a process beside rank 0 must compute the whole batch unseen."""

import os
import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

import record
from in_batch_losses import unit
from loops import samples
from model import CLASSES, FEATURES, Classifier


def batches(count=32, size=8):
    return DataLoader(samples(count), size, shuffle=True)


def step(log, model, optimizer, x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    log.step(loss, model, optimizer)


def made():
    model = Classifier()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@record.case
def batch_drawn_ahead(log):
    """The next batch is there before this one is used."""
    model, optimizer = made()
    iterator = iter(batches())
    following = next(iterator)
    while following is not None:
        x, y = following
        following = next(iterator, None)
        step(log, model, optimizer, x, y)


@record.case
def looked_at_first(log):
    """One batch for its shapes, before the loop."""
    model, optimizer = made()
    log.note("shape", list(next(iter(batches()))[0].shape)[1:])
    for x, y in batches():
        step(log, model, optimizer, x, y)


@record.case
def drawn_on_a_thread(log):
    model, optimizer = made()
    ready = queue.Queue(2)

    def draw():
        for batch in batches():
            ready.put(batch)
        ready.put(None)

    thread = threading.Thread(target=draw)
    thread.start()
    while (batch := ready.get()) is not None:
        step(log, model, optimizer, *batch)
    thread.join()


@record.case
def larger_batches_are_refused(log):
    """The whole batch raises in the script's own code, where that is started by `castor run`."""
    model, optimizer = made()
    for x, y in batches():
        if len(x) > 4 and "CASTOR_JOB" in os.environ:
            raise ValueError("at most 4 samples")
        step(log, model, optimizer, x, y)


@record.case
def appends_as_it_steps(log):
    """What the script writes stands there once, and a file that it holds open is at its place."""
    model, optimizer = made()
    if os.environ.get("CASTOR_RANK", "0") in ("0", "-1"):
        path = log.path("losses.txt")
        open(path, "w").close()
        with open(path, "a+") as file:
            for x, y in batches():
                step(log, model, optimizer, x, y)
                file.write(f"{len(file.read())}\n")
                file.flush()
            file.seek(0)
            log.note("lines", file.read().split())
        return
    for x, y in batches():
        step(log, model, optimizer, x, y)
    log.note("lines", ["0"] * 4)


@record.case
def two_networks_two_loaders(log):
    """Two optimizers step in one batch; the other loader is drawn from between."""
    torch.manual_seed(0)
    maker, judge = nn.Linear(FEATURES, FEATURES), nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 1))
    of_maker, of_judge = torch.optim.SGD(maker.parameters(), lr=0.05), torch.optim.SGD(judge.parameters(), lr=0.05)
    others = iter(batches())
    for x, _ in batches():
        z, _ = next(others)
        loss = F.softplus(-judge(x)).mean() + F.softplus(judge(maker(z).detach())).mean()
        of_judge.zero_grad()
        loss.backward()
        of_judge.step()
        log.step(loss, judge, of_judge)
        loss = F.softplus(-judge(maker(z))).mean()
        of_maker.zero_grad()
        loss.backward()
        of_maker.step()
        log.step(loss, maker, of_maker)


@record.case
def another_loss_later(log):
    """The first epoch may be split, the second may not."""
    model, optimizer = made()
    for x, y in batches():
        step(log, model, optimizer, x, y)
    for x, y in batches():
        scores = unit(model(x)) @ unit(model(x + 0.1)).T
        loss = (torch.logsumexp(scores, dim=1) - scores.diagonal()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def normalized_from_the_sixth_batch_on(log):
    model, optimizer = made()
    for number, (x, y) in enumerate(batches(96)):
        step(log, model, optimizer, x / x.abs().max() if number > 5 else x / 3.0, y)


if __name__ == "__main__":
    record.main()
