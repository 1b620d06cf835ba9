"""Gradient clipping, in the ways that scripts do it."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm

import record
from model import Classifier, batch


def train(log, clip, optimizer_class=torch.optim.AdamW, lr=1e-3, steps=4):
    model = DistributedDataParallel(Classifier())
    optimizer = optimizer_class(model.parameters(), lr=lr)
    for step in range(steps):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        clip(model, step)
        log.gradients(model, "clipped")
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def norm(log):
    train(log, lambda model, step: log.note("norm", clip_grad_norm_(model.parameters(), 0.5)))


@record.case
def norm_sgd(log):
    train(log, lambda model, step: log.note("norm", clip_grad_norm_(model.parameters(), 0.5)), torch.optim.SGD, 0.1)


@record.case
def norm_infinity(log):
    train(log, lambda model, step: log.note("norm", clip_grad_norm_(model.parameters(), 0.01, norm_type="inf")))


@record.case
def norm_never_reached(log):
    train(log, lambda model, step: log.note("norm", clip_grad_norm_(model.parameters(), 1e6)))


@record.case
def value(log):
    train(log, lambda model, step: clip_grad_value_(model.parameters(), 0.005))


@record.case
def several_calls(log):
    """One norm for the body and one for the head, then by value over all."""

    def clip(model, step):
        log.note("head", clip_grad_norm_(model.module.head.parameters(), 0.1))
        body = [p for name, p in model.named_parameters() if ".head." not in name]
        log.note("body", clip_grad_norm_(body, 0.3))
        log.note("again", clip_grad_norm_(model.parameters(), 0.2))
        clip_grad_value_(model.parameters(), 0.01)

    train(log, clip)


@record.case
def one_parameter(log):
    train(log, lambda model, step: log.note("norm", clip_grad_norm_(model.module.deep.weight, 0.05)))


@record.case
def generator(log):
    train(log, lambda model, step: log.note("norm", clip_grad_norm_((p for p in model.parameters()), 0.3)))


@record.case
def norm_logged_by_rank_0(log):
    """Only rank 0 computes the norm, for its log; no rank clips."""

    def clip(model, step):
        if dist.get_rank() == 0:
            total = get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
            by_hand = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            log.print(f"norm {total:.4f} {by_hand:.4f}")
            log.note("norm", [total, by_hand])

    train(log, clip)


@record.case
def skipped_on_a_large_norm(log):
    """A spike: the step is skipped where the norm is too large."""
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(5):
        x, y = batch(step)
        loss = F.cross_entropy(model(x), y) * (100 if step == 2 else 1)
        loss.backward()
        total = clip_grad_norm_(model.parameters(), 1.0)
        if total < 20:
            optimizer.step()
        log.note("norm", total)
        optimizer.zero_grad()
        log.step(loss, model, optimizer)


@record.case
def not_finite_is_an_error(log):
    model = DistributedDataParallel(Classifier())
    x, y = batch(0)
    loss = F.cross_entropy(model(x), y)
    if dist.get_rank() == 1:
        loss = loss * float("inf")
    loss.backward()
    try:
        clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        log.note("error", None)
    except RuntimeError as error:
        log.note("error", str(error))


@record.case
def another_limit_on_each_rank(log):
    train(log, lambda model, step: clip_grad_norm_(model.parameters(), 0.1 * (1 + dist.get_rank())))


@record.case
def by_hand(log):
    """The norm over all parameters and the scaling, written out."""

    def clip(model, step):
        parameters = [p for p in model.parameters() if p.grad is not None]
        total = torch.sqrt(sum(p.grad.pow(2).sum() for p in parameters))
        for p in parameters:
            p.grad.detach().mul_(min(1.0, 0.5 / (total.item() + 1e-6)))
        log.note("norm", total)

    train(log, clip)


if __name__ == "__main__":
    record.main()
