"""The plain training loop, with the optimizers that people use."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import record
from model import CLASSES, FEATURES, Classifier, batch
from steps import train, train_step


def train_with(log, make_optimizer, steps=4):
    model = DistributedDataParallel(Classifier())
    optimizer = make_optimizer(model.parameters())
    train(log, model, optimizer, range(steps))


@record.case
def sgd(log):
    train_with(log, lambda p: torch.optim.SGD(p, lr=0.1))


@record.case
def sgd_momentum(log):
    train_with(log, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2))


@record.case
def adam(log):
    train_with(log, lambda p: torch.optim.Adam(p, lr=1e-3))


@record.case
def adam_amsgrad(log):
    train_with(log, lambda p: torch.optim.Adam(p, lr=1e-3, amsgrad=True))


@record.case
def adamw(log):
    train_with(log, lambda p: torch.optim.AdamW(p, lr=1e-3))


@record.case
def adamw_fused(log):
    train_with(log, lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True))


@record.case
def adamw_foreach(log):
    train_with(log, lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True))


@record.case
def sgd_fused(log):
    train_with(log, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True))


@record.case
def rmsprop(log):
    train_with(log, lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5))


@record.case
def adagrad(log):
    train_with(log, lambda p: torch.optim.Adagrad(p, lr=1e-2))


@record.case
def adafactor(log):
    train_with(log, lambda p: torch.optim.Adafactor(p, lr=1e-2))


@record.case
def groups(log):
    """Weight decay for matrices only, a smaller learning rate for the head."""
    model = DistributedDataParallel(Classifier())
    named = dict(model.named_parameters())
    head = [p for name, p in named.items() if ".head." in name]
    matrices = [p for name, p in named.items() if ".head." not in name and p.ndim > 1]
    vectors = [p for name, p in named.items() if ".head." not in name and p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": 0.1},
            {"params": vectors, "weight_decay": 0.0},
            {"params": head, "lr": 1e-4, "betas": (0.8, 0.95)},
        ],
        lr=1e-3,
    )
    train(log, model, optimizer, range(4))


@record.case
def learning_rate_tensor(log):
    train_with(log, lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-3)))


@record.case
def one_cycle(log):
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=6)
    for step in range(5):
        loss = train_step(model, optimizer, step)
        scheduler.step()
        log.note("lr", scheduler.get_last_lr())
        log.step(loss, model, optimizer)


@record.case
def schedules_chained(log):
    """Linear warm-up, then cosine; the learning rate is also cut by hand once."""
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], [2])
    for step in range(6):
        loss = train_step(model, optimizer, step)
        scheduler.step()
        if step == 3:
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
        log.note("lr", optimizer.param_groups[0]["lr"])
        log.step(loss, model, optimizer)


@record.case
def gradients_as_bucket_view(log):
    model = DistributedDataParallel(Classifier(), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train(log, model, optimizer, range(4))


@record.case
def two_models(log):
    """Two networks, wrapped and stepped apart, in one loss."""
    first = DistributedDataParallel(Classifier())
    second = DistributedDataParallel(Classifier(hidden=300))
    slow = torch.optim.SGD(first.parameters(), lr=0.1)
    fast = torch.optim.AdamW(second.parameters(), lr=1e-3)
    for step in range(4):
        x, y = batch(step)
        slow.zero_grad()
        fast.zero_grad()
        loss = F.cross_entropy(first(x) + second(x), y)
        loss.backward()
        if step % 2:
            slow.step()
        fast.step()
        log.step(loss, first, slow)
        log.step(None, second, fast)


class Endless(IterableDataset):
    """Samples without an end; a rank and a worker draw every so manieth."""

    def __iter__(self):
        worker = get_worker_info()
        parts, part = (worker.num_workers, worker.id) if worker else (1, 0)
        index = dist.get_rank() * parts + part
        while True:
            generator = torch.Generator().manual_seed(index)
            yield torch.randn(FEATURES, generator=generator), int(torch.randint(0, CLASSES, (), generator=generator))
            index += dist.get_world_size() * parts


@record.case
def iterable_dataset(log):
    """Read by two workers and left in mid-stream, twice."""
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Endless(), batch_size=8, num_workers=2)
    for _ in range(2):
        for step, (x, y) in enumerate(loader):
            if step == 3:
                break
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            log.step(loss, model, optimizer)


@record.case
def models_one_after_another(log):
    """A sweep: the first model is gone when the second one is made."""
    for lr in (0.1, 0.01, 0.001):
        torch.manual_seed(7)
        train_with(log, lambda p: torch.optim.SGD(p, lr=lr), steps=2)


if __name__ == "__main__":
    record.main()
