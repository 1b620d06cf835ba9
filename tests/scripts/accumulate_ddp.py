"""Loops whose step is a micro-step under CASTOR_ACCUMULATE: with `--parts K` each draws a K-th of the batch, and what it
records after K of them is what it records without."""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

import record
from model import CLASSES, FEATURES, Classifier
from parts import Parts, adamw_of, samples, sgd_of

WHOLE, SAMPLES = 12, 40  # of a batch and of an epoch, on each rank


def loader(**settings):
    dataset = TensorDataset(*samples(SAMPLES * dist.get_world_size()))
    sampler = DistributedSampler(dataset, shuffle=True, seed=3)
    return DataLoader(dataset, batch_size=WHOLE // record.parts, sampler=sampler, drop_last=True, **settings)


def train(log, optimizer_of, model=None, epochs=2, before=None, after=None, clear=None):
    """The plain loop. `before(optimizer, model)` comes before the step, `after` after it; `clear` replaces zero_grad()."""
    model = DistributedDataParallel(Classifier()) if model is None else model
    optimizer, parts = optimizer_of(model.parameters()), Parts(log)
    for epoch in range(epochs):
        batches = loader()
        batches.sampler.set_epoch(epoch)
        for x, y in batches:
            clear(optimizer, model) if clear else optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            if before:
                before(optimizer, model)
            optimizer.step()
            if after:
                after(optimizer)
            parts.over(loss, model, optimizer)
    return model, optimizer


@record.case
def sgd(log):
    train(log, sgd_of)


@record.case
def adamw(log):
    train(log, adamw_of)


@record.case
def sum_of_norms(log):
    """An optimizer of the script's own that looks at all gradients at once."""

    class Normed(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.1})

        @torch.no_grad()
        def step(self):
            listed = [p for group in self.param_groups for p in group["params"]]
            whole = torch.stack([p.grad.norm() for p in listed]).norm()
            for p in listed:
                p.add_(p.grad / whole, alpha=-self.param_groups[0]["lr"])

    train(log, Normed)


@record.case
def clipped_by_norm(log):
    train(log, sgd_of, before=lambda optimizer, model: nn.utils.clip_grad_norm_(model.parameters(), 0.3))


@record.case
def clipped_by_value(log):
    train(log, sgd_of, before=lambda optimizer, model: nn.utils.clip_grad_value_(model.parameters(), 0.01))


@record.case
def scheduler_each_step(log):
    made = []

    def optimizer_of(parameters):
        optimizer = sgd_of(parameters)
        made.append(torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=20))
        return optimizer

    train(log, optimizer_of, after=lambda optimizer: made[0].step())


@record.case
def scheduler_each_epoch(log):
    model = DistributedDataParallel(Classifier())
    optimizer = sgd_of(model.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(3):
        train(log, lambda _: optimizer, model, epochs=1)
        scheduler.step()
        log.note("rate", scheduler.get_last_lr()[0])


@record.case
def zeroed_in_place(log):
    train(log, sgd_of, clear=lambda optimizer, model: optimizer.zero_grad(set_to_none=False))


@record.case
def zeroed_by_the_module(log):
    train(log, sgd_of, clear=lambda optimizer, model: model.zero_grad())


@record.case
def zeroed_after_the_step(log):
    train(log, sgd_of, clear=lambda optimizer, model: None, after=lambda optimizer: optimizer.zero_grad())


@record.case
def dropped_by_hand(log):
    def clear(optimizer, model):
        for p in model.parameters():
            p.grad = None

    train(log, adamw_of, clear=clear)


@record.case
def zeroed_by_hand(log):
    def clear(optimizer, model):
        for p in model.parameters():
            if p.grad is not None:
                p.grad.zero_()

    train(log, adamw_of, clear=clear)


@record.case
def two_losses(log):
    """Two backward passes for each step, the second over a part of the model."""
    model = DistributedDataParallel(Classifier())
    optimizer, parts = sgd_of(model.parameters()), Parts(log)
    for x, y in loader():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        other = model(x).square().mean()
        other.backward()
        optimizer.step()
        parts.over(loss + other, model, optimizer)


@record.case
def own_accumulation(log):
    """A script that accumulates two batches itself, under no_sync."""
    model = DistributedDataParallel(Classifier())
    optimizer, parts = sgd_of(model.parameters()), Parts(log)
    for x, y in loader():
        optimizer.zero_grad()
        half = len(x) // 2
        with model.no_sync():
            first = F.cross_entropy(model(x[:half]), y[:half]) / 2
            first.backward()
        second = F.cross_entropy(model(x[half:]), y[half:]) / 2
        second.backward()
        optimizer.step()
        parts.over(first + second, model, optimizer)


def train_by_closure(log, optimizer_of):
    model = DistributedDataParallel(Classifier())
    optimizer, parts = optimizer_of(model.parameters()), Parts(log)
    for x, y in loader():

        def evaluate():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        parts.over(optimizer.step(evaluate), model, optimizer)


@record.case
def closure(log):
    train_by_closure(log, sgd_of)


@record.case
def used_by_turns(log):
    """A head that only some parts of a batch use, on some ranks."""

    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.second = Classifier(), nn.Linear(FEATURES, CLASSES)

        def forward(self, x, uses):
            heads = [self.second(third) if use else third.new_zeros(()) for third, use in zip(x.split(size), uses)]
            return self.body(x) + torch.cat([head.expand(size, CLASSES) for head in heads])

    size, third = WHOLE // 3, 0
    model = DistributedDataParallel(Heads(), find_unused_parameters=True)
    optimizer, parts = sgd_of(model.parameters()), Parts(log)
    for x, y in loader():
        optimizer.zero_grad()
        uses = [number % 3 == 1 and dist.get_rank() == 1 for number in range(third, third + len(x) // size)]
        third += len(uses)
        loss = F.cross_entropy(model(x, uses), y)
        loss.backward()
        optimizer.step()
        parts.over(loss, model, optimizer)


@record.case
def frozen_at_first(log):
    model = DistributedDataParallel(Classifier(), find_unused_parameters=True)
    optimizer, parts = sgd_of(model.parameters()), Parts(log)
    steps = 0
    for x, y in loader():
        model.module.deep.requires_grad_(steps > 0)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        steps += parts.over(loss, model, optimizer)


def train_wrapped_again(log, kept):
    """A second wrapper from the second epoch on; the first one is kept, or dropped. The optimizer has a part of the model then."""
    network, wrappers = Classifier(), []
    optimizer, parts = sgd_of(network.parameters()), Parts(log)
    for epoch in range(3):
        model = DistributedDataParallel(network)
        wrappers = [*wrappers, model] if kept else []
        if epoch == 1:
            optimizer.param_groups[0]["params"] = list(network.parameters())[1:]
        for x, y in loader():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
            parts.over(loss, model, optimizer)


@record.case
def wrapped_again(log):
    train_wrapped_again(log, kept=False)


@record.case
def wrapped_again_and_kept(log):
    train_wrapped_again(log, kept=True)


@record.case
def replaced_between(log):
    """A parameter is replaced between two parts of a batch."""
    model = DistributedDataParallel(Classifier())
    optimizer = sgd_of(model.parameters())

    def after(optimizer):
        old = optimizer.param_groups[0]["params"][0]
        optimizer.param_groups[0]["params"][0] = nn.Parameter(old.detach().clone())

    train(log, lambda _: optimizer, model, after=after)


@record.case
def static_graph(log):
    train(log, sgd_of, DistributedDataParallel(Classifier(), static_graph=True))


@record.case
def scaler(log):
    made = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
    model = DistributedDataParallel(Classifier())
    optimizer, parts = sgd_of(model.parameters()), Parts(log)
    for x, y in loader():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        made.scale(loss).backward()
        made.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        made.step(optimizer)
        made.update()
        if parts.over(loss, model, optimizer):
            log.note("scale", made.get_scale())


@record.case
def disabled_scaler(log):
    """As in scripts that turn mixed precision off by an argument."""
    made = torch.amp.GradScaler("cpu", enabled=False)
    model = DistributedDataParallel(Classifier())
    optimizer, parts = sgd_of(model.parameters()), Parts(log)
    for x, y in loader():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        made.scale(loss).backward()
        made.unscale_(optimizer)
        made.step(optimizer)
        made.update()
        parts.over(loss, model, optimizer)


@record.case
def overflow(log):
    """One part of the second batch overflows on one rank: that whole step is left out on all."""
    made = torch.amp.GradScaler("cpu", init_scale=256.0)
    model = DistributedDataParallel(Classifier())
    optimizer, parts = sgd_of(model.parameters()), Parts(log)
    for number, (x, y) in enumerate(loader()):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        bad = number == record.parts and dist.get_rank() == 1
        made.scale(loss * float("inf") if bad else loss).backward()
        made.step(optimizer)
        made.update()
        if parts.over(loss, None, optimizer):
            log.parameters(model)
            log.note("scale", made.get_scale())


@record.case
def two_models(log):
    """A pair that steps by turns, each with an optimizer of its own."""
    first, second = DistributedDataParallel(Classifier()), DistributedDataParallel(nn.Linear(FEATURES, 1))
    one, other = sgd_of(first.parameters()), sgd_of(second.parameters())
    of_one, of_other = Parts(log), Parts(log)
    for x, y in loader():
        other.zero_grad()
        critic = second(x).square().mean()
        critic.backward()
        other.step()
        of_other.over(critic, second, other)
        one.zero_grad()
        loss = F.cross_entropy(first(x), y)
        loss.backward()
        one.step()
        of_one.over(loss, first, one)


@record.case
def evaluated_between(log):
    """Evaluation over a loader of its own, whose last batches count."""
    model = DistributedDataParallel(Classifier())
    optimizer = sgd_of(model.parameters())
    held_out = DataLoader(TensorDataset(*samples(14)), batch_size=4)
    for _ in range(2):
        train(log, lambda _: optimizer, model, epochs=1)
        model.eval()
        total = sum(F.cross_entropy(model(x), y, reduction="sum").item() for x, y in held_out)
        log.note("held out", total)
        model.train()


@record.case
def stream(log):
    """An iterable dataset, which does not know its length."""

    class Stream(IterableDataset):
        def __iter__(self):
            x, y = samples(SAMPLES * dist.get_world_size())
            return iter(list(zip(x, y))[dist.get_rank() :: dist.get_world_size()])

    model = DistributedDataParallel(Classifier())
    optimizer, parts = sgd_of(model.parameters()), Parts(log)
    for _ in range(2):
        for x, y in DataLoader(Stream(), batch_size=WHOLE // record.parts, drop_last=True, num_workers=1):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            parts.over(loss, model, optimizer)


@record.case
def sparse_embedding(log):
    """Gradients that PyTorch's own reducer sums."""

    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(50, FEATURES, sparse=True), nn.Linear(FEATURES, CLASSES)

        def forward(self, x):
            return self.head(self.table((x * 7).long().abs() % 50).mean(1))

    train(log, lambda p: torch.optim.SGD(p, lr=0.5), DistributedDataParallel(Bag()))


@record.case
def gradients_gone_through(log):
    """A generator's backward that runs through the critic, whose gradients are then cleared."""
    critic, generator = DistributedDataParallel(nn.Linear(8, 1)), DistributedDataParallel(nn.Linear(4, 8))
    one, other = sgd_of(critic.parameters()), sgd_of(generator.parameters())
    for step in range(4):
        x = torch.randn(6, 4)
        critic.zero_grad()
        critic(generator(x).detach()).mean().backward()
        one.step()
        generator.zero_grad()
        critic(generator(x)).square().mean().backward()
        other.step()


@record.case
def changed_by_hand(log):
    def before(optimizer, model):
        for p in model.parameters():
            p.grad.mul_(0.5)

    train(log, sgd_of, before=before)


@record.case
def made_by_autograd_grad(log):
    model = DistributedDataParallel(Classifier())
    optimizer = sgd_of(model.parameters())
    for x, y in loader():
        gradients = torch.autograd.grad(F.cross_entropy(model.module(x), y), list(model.parameters()))
        for p, gradient in zip(model.parameters(), gradients):
            p.grad = gradient
        optimizer.step()


@record.case
def line_search(log):
    train_by_closure(log, lambda p: torch.optim.LBFGS(p, lr=0.1))


@record.case
def short_epoch(log):
    model = DistributedDataParallel(Classifier())
    optimizer = sgd_of(model.parameters())
    for x, y in DataLoader(TensorDataset(*samples(8)), batch_size=4):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


if __name__ == "__main__":
    record.main()
