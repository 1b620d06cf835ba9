"""One process: the ways in which scripts get their batches from a DataLoader."""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Subset, random_split

import record
from model import CLASSES, FEATURES, Classifier


class Samples(Dataset):
    def __init__(self, count=32):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        x = torch.randn(FEATURES, generator=torch.Generator().manual_seed(index))
        return x, index % CLASSES


class Stream(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        for index in range(self.count):
            yield Samples()[index]


def train(log, batches, epochs=1, unpack=lambda batch: batch):
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(epochs):
        for batch in batches:
            x, y = unpack(batch)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            log.step(loss, model, optimizer)
    return model


@record.case
def in_order(log):
    train(log, DataLoader(Samples(), 8))


@record.case
def shuffled(log):
    train(log, DataLoader(Samples(), 8, shuffle=True), epochs=2)


@record.case
def shuffled_with_a_generator(log):
    train(log, DataLoader(Samples(), 8, shuffle=True, generator=torch.Generator().manual_seed(5)), epochs=2)


@record.case
def tail_dropped(log):
    train(log, DataLoader(Samples(29), 8, shuffle=True, drop_last=True))


@record.case
def tail_of_odd_length(log):
    """29 samples in eights: the last batch has five."""
    train(log, DataLoader(Samples(29), 8, shuffle=True))


@record.case
def tail_of_one(log):
    """The last batch is smaller than the number of ranks."""
    train(log, DataLoader(Samples(17), 8, shuffle=True), epochs=2)


@record.case
def odd_batches(log):
    train(log, DataLoader(Samples(28), 7, shuffle=True))


@record.case
def batches_of_one(log):
    train(log, DataLoader(Samples(4), 1, shuffle=True))


@record.case
def batches_of_three(log):
    train(log, DataLoader(Samples(9), 3))


@record.case
def forked_workers(log):
    train(log, DataLoader(Samples(), 8, shuffle=True, num_workers=2, multiprocessing_context="fork"))


@record.case
def persistent_workers(log):
    loader = DataLoader(Samples(16), 8, shuffle=True, num_workers=1, persistent_workers=True)
    train(log, loader, epochs=2)


@record.case
def spawned_workers(log):
    train(log, DataLoader(Samples(16), 8, num_workers=1, multiprocessing_context="spawn"))


@record.case
def iterable_dataset(log):
    train(log, DataLoader(Stream(27), 8))


@record.case
def with_replacement(log):
    """A sampler without end, an iterator made by hand, a fixed number of steps."""
    data = Samples()
    batches = iter(DataLoader(data, 8, sampler=RandomSampler(data, replacement=True, num_samples=10**6)))
    train(log, (next(batches) for _ in range(4)))


@record.case
def restarted_iterator(log):
    loader = DataLoader(Samples(20), 8, shuffle=True)

    def forever():
        iterator = iter(loader)
        for _ in range(7):
            try:
                batch = next(iterator)
            except StopIteration:
                iterator = iter(loader)
                batch = next(iterator)
            yield batch

    train(log, forever())


@record.case
def own_sampler(log):
    train(log, DataLoader(Samples(), 8, sampler=[31, 2, 4, 8, 16, 1, 3, 9, 27, 5, 25, 7, 11, 13, 17, 19]))


@record.case
def batch_sampler(log):
    """Batches of different sizes."""
    train(log, DataLoader(Samples(), batch_sampler=[[1, 2, 3], [4, 5, 6, 7, 8, 9], [10], [11, 12]]))


@record.case
def dictionaries(log):
    def collate(items):
        return {
            "inputs": {"x": torch.stack([x for x, _ in items])},
            "y": torch.tensor([y for _, y in items]),
            "names": [f"item {y}" for _, y in items],
            "count": len(items),
        }

    train(log, DataLoader(Samples(), 8, collate_fn=collate), unpack=lambda b: (b["inputs"]["x"], b["y"]))


@record.case
def loader_without_batching(log):
    """batch_size=None: the dataset gives whole batches."""
    data = [(torch.stack([Samples()[8 * i + j][0] for j in range(8)]), torch.arange(8) % CLASSES) for i in range(3)]
    train(log, DataLoader(data, batch_size=None))


@record.case
def split_and_subset(log):
    first, second = random_split(Samples(), [20, 12], generator=torch.Generator().manual_seed(1))
    train(log, DataLoader(first, 5, shuffle=True))
    train(log, DataLoader(Subset(second, range(8)), 4))


@record.case
def two_loaders_together(log):
    train_together(log, DataLoader(Samples(16), 8, shuffle=True), DataLoader(Samples(8), 4, shuffle=True))


@record.case
def tail_drawn_ahead(log):
    """Accelerate's loader hands out a batch when it has the next one, whose parts may weigh differently."""
    from accelerate import Accelerator

    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in Accelerator(cpu=True).prepare(DataLoader(Samples(27), 8, shuffle=True)):
        optimizer.zero_grad()
        loss = F.mse_loss(F.dropout(model(x), 0.3), F.one_hot(y, CLASSES).float())
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def two_loaders_of_odd_sizes(log):
    train_together(log, DataLoader(Samples(16), 8, shuffle=True), DataLoader(Samples(10), 5, shuffle=True))


def train_together(log, first, second):
    pairs = zip(first, second)
    train(log, pairs, unpack=lambda pair: (torch.cat([pair[0][0], pair[1][0]]), torch.cat([pair[0][1], pair[1][1]])))


@record.case
def evaluation(log):
    """Under no_grad every rank sees whole batches, so that counts and metrics are complete."""
    model = train(log, DataLoader(Samples(), 8, shuffle=True))
    model.eval()
    seen, right, total = 0, 0, 0.0
    with torch.no_grad():
        for x, y in DataLoader(Samples(21), 8):
            logits = model(x)
            seen += len(x)
            right += int((logits.argmax(1) == y).sum())
            total += F.cross_entropy(logits, y, reduction="sum").item()
    log.note("counts", [seen, right])
    log.note("validation loss", total / seen)
    log.print(f"{right} of {seen}, loss {total / seen:.4f}")


@record.case
def evaluation_in_inference_mode(log):
    model = train(log, DataLoader(Samples(16), 8, shuffle=True))
    with torch.inference_mode():
        log.note("validation loss", [F.cross_entropy(model(x), y).item() for x, y in DataLoader(Samples(13), 4)])


@record.case
def evaluation_during_the_epoch(log):
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    validation = DataLoader(Samples(12), 6)
    for x, y in DataLoader(Samples(), 8, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            log.note("validation loss", [F.cross_entropy(model(a), b).item() for a, b in validation])
        log.step(loss, model, optimizer)


@record.case
def length_of_a_loader(log):
    """Schedules are made from len(loader), which stays the single process's."""
    loader = DataLoader(Samples(30), 8, shuffle=True)
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, epochs=2, steps_per_epoch=len(loader))
    log.note("length", [len(loader), len(loader.dataset), loader.batch_size])
    for epoch in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            log.step(loss, model, optimizer)


if __name__ == "__main__":
    record.main()
