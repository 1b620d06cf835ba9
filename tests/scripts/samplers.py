"""One process: samplers, workers and iterable datasets, each with a loop of a few steps."""

import itertools
import random

import numpy
import torch
import torch.nn.functional as F
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

import record
from model import CLASSES, FEATURES, Classifier


class Samples(Dataset):
    def __init__(self, count=24):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        x = torch.randn(FEATURES, generator=torch.Generator().manual_seed(int(index)))
        return x, int(index) % CLASSES


class Stream(IterableDataset):
    """Each worker has its share of the samples."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for index in range(first, self.count, step):
            yield Samples()[index]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(log, loader, epochs=1, make_optimizer=sgd, steps=None, unpack=lambda batch: batch, before_epoch=None):
    model = Classifier()
    optimizer = make_optimizer(model)
    for epoch in range(epochs):
        if before_epoch:
            before_epoch(epoch)
        for batch in itertools.islice(loader, steps):
            x, y = unpack(batch)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            log.step(loss, model, optimizer)
    return model


# Samplers


@record.case
def weighted(log):
    """WeightedRandomSampler: rare classes as often as others."""
    weights = [1.0 if index % CLASSES else 5.0 for index in range(24)]
    train(log, DataLoader(Samples(), 8, sampler=WeightedRandomSampler(weights, 20)), epochs=2, make_optimizer=adamw)


@record.case
def weighted_without_replacement(log):
    sampler = WeightedRandomSampler([1.0 + index for index in range(24)], 14, replacement=False, generator=torch.Generator().manual_seed(2))
    train(log, DataLoader(Samples(), 4, sampler=sampler))


@record.case
def random_with_replacement(log):
    data = Samples()
    train(log, DataLoader(data, 8, sampler=RandomSampler(data, replacement=True, num_samples=20)), epochs=2, make_optimizer=adamw)


@record.case
def subset(log):
    """SubsetRandomSampler: training and validation from one dataset."""
    order = torch.randperm(24).tolist()
    model = train(log, DataLoader(Samples(), 8, sampler=SubsetRandomSampler(order[:18])), epochs=2)
    with torch.no_grad():
        for x, y in DataLoader(Samples(), 8, sampler=SubsetRandomSampler(order[18:])):
            log.note("validation loss", F.cross_entropy(model(x), y).item())


class Shuffled(Sampler):
    """Draws all indices when the epoch begins."""

    def __init__(self, count, draw):
        self.count, self.draw = count, draw

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter(self.draw(self.count))


@record.case
def class_that_draws_with_torch(log):
    train(log, DataLoader(Samples(), 8, sampler=Shuffled(24, lambda n: torch.randperm(n).tolist())), epochs=2)


@record.case
def class_that_draws_with_numpy(log):
    train(log, DataLoader(Samples(), 8, sampler=Shuffled(24, numpy.random.permutation)), epochs=2, make_optimizer=adamw)


@record.case
def class_that_draws_with_random(log):
    train(log, DataLoader(Samples(), 8, sampler=Shuffled(24, lambda n: random.sample(range(n), n))), epochs=2)


@record.case
def class_with_a_generator_of_numpy(log):
    generator = numpy.random.default_rng(7)
    train(log, DataLoader(Samples(), 8, sampler=Shuffled(24, generator.permutation)), epochs=2)


@record.case
def class_that_knows_the_epoch(log):
    class OfEpoch(Sampler):
        epoch = 0

        def __iter__(self):
            return iter(torch.randperm(24, generator=torch.Generator().manual_seed(self.epoch)).tolist())

        def __len__(self):
            return 24

    sampler = OfEpoch()
    train(log, DataLoader(Samples(), 8, sampler=sampler), epochs=2, before_epoch=lambda epoch: setattr(sampler, "epoch", epoch))


@record.case
def class_that_draws_as_it_goes(log):
    """One number for each index, when it is asked for, without an end."""

    class Endless(Sampler):
        def __iter__(self):
            while True:
                yield int(torch.randint(24, ()))

    train(log, DataLoader(Samples(), 7, sampler=Endless()), steps=4)


@record.case
def class_of_batches(log):
    """Batches of samples that are alike in length, in a random order."""

    class Buckets(Sampler):
        def __init__(self):
            self.batches = [[i for i in range(24) if i % 4 == length][:3 + length] for length in range(4)]

        def __iter__(self):
            for number in torch.randperm(len(self.batches)).tolist():
                yield self.batches[number]

        def __len__(self):
            return len(self.batches)

    train(log, DataLoader(Samples(), batch_sampler=Buckets()), epochs=2, make_optimizer=adamw)


@record.case
def batches_of_a_sampler(log):
    """BatchSampler by hand, with and without the tail."""
    data = Samples(21)
    for drop_last in (True, False):
        train(log, DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 8, drop_last)))


@record.case
def batches_of_indices(log):
    """The sampler draws batches, and the dataset takes lists of indices (batch_size=None)."""

    class Whole(Samples):
        def __getitem__(self, indices):
            samples = [super(Whole, self).__getitem__(index) for index in indices]
            return torch.stack([x for x, _ in samples]), torch.tensor([y for _, y in samples])

    data = Whole()
    train(log, DataLoader(data, batch_size=None, sampler=BatchSampler(RandomSampler(data), 7, False)))


# Workers


@record.case
def prefetch_of_four(log):
    train(log, DataLoader(Samples(), 4, shuffle=True, num_workers=2, prefetch_factor=4), epochs=2)


@record.case
def left_in_mid_epoch(log):
    """Steps are counted, not epochs: what workers have loaded ahead is dropped."""
    train(log, DataLoader(Samples(), 4, shuffle=True, num_workers=2), epochs=2, steps=2, make_optimizer=adamw)


@record.case
def persistent_and_left_in_mid_epoch(log):
    train(log, DataLoader(Samples(), 4, shuffle=True, num_workers=2, persistent_workers=True), epochs=3, steps=2)


@record.case
def spawned_and_persistent(log):
    loader = DataLoader(Samples(15), 4, shuffle=True, num_workers=1, persistent_workers=True, multiprocessing_context="spawn")
    train(log, loader, epochs=2)


@record.case
def sampler_with_workers(log):
    sampler = WeightedRandomSampler([1.0 + index % 3 for index in range(24)], 18)
    train(log, DataLoader(Samples(), 8, sampler=sampler, num_workers=2, drop_last=True), epochs=2)


@record.case
def one_loader_for_both(log):
    """Trained on and evaluated with the same loader, whose workers stay."""
    loader = DataLoader(Samples(20), 8, shuffle=True, num_workers=1, persistent_workers=True)
    trained_and_evaluated(log, loader)


@record.case
def one_stream_for_both(log):
    loader = DataLoader(Stream(20), 8, num_workers=1, persistent_workers=True)
    trained_and_evaluated(log, loader)


def trained_and_evaluated(log, loader):
    model = Classifier()
    optimizer = sgd(model)
    for epoch in range(2):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            log.step(loss, model, optimizer)
        model.eval()
        with torch.no_grad():
            log.note("loss of all", [[len(y), F.cross_entropy(model(x), y).item()] for x, y in loader])


@record.case
def evaluated_without_no_grad(log):
    """model.eval() alone."""
    model = train(log, DataLoader(Samples(), 8, shuffle=True))
    model.eval()
    seen = [(len(y), int((model(x).argmax(1) == y).sum())) for x, y in DataLoader(Samples(21), 8, num_workers=1)]
    log.note("seen", seen)
    log.print(f"{sum(right for _, right in seen)} of {sum(count for count, _ in seen)}")


# Iterable datasets


@record.case
def stream_of_workers(log):
    """Two workers, each with tails of its own."""
    train(log, DataLoader(Stream(21), 8, num_workers=2), make_optimizer=adamw)


@record.case
def stream_of_spawned_workers(log):
    train(log, DataLoader(Stream(19), 8, num_workers=1, multiprocessing_context="spawn"))


@record.case
def stream_of_persistent_workers(log):
    train(log, DataLoader(Stream(21), 8, num_workers=2, persistent_workers=True, prefetch_factor=3), epochs=2)


@record.case
def stream_without_tail(log):
    for workers in (0, 2):
        train(log, DataLoader(Stream(21), 4, num_workers=workers, drop_last=True))


@record.case
def stream_with_a_tail_of_one(log):
    train(log, DataLoader(Stream(17), 8), epochs=2, make_optimizer=adamw)


@record.case
def stream_of_batches(log):
    """batch_size=None: the dataset makes the batches, of several sizes."""

    class Batches(IterableDataset):
        def __iter__(self):
            for size in (8, 3, 1, 5):
                samples = [Samples()[size + k] for k in range(size)]
                yield torch.stack([x for x, _ in samples]), torch.tensor([y for _, y in samples])

    train(log, DataLoader(Batches(), batch_size=None))


@record.case
def stream_shuffled_in_a_buffer(log):
    class Buffered(IterableDataset):
        def __iter__(self):
            buffer = []
            for index in range(24):
                buffer.append(index)
                if len(buffer) == 6:
                    yield Samples()[buffer.pop(random.randrange(6))]
            random.shuffle(buffer)
            for index in buffer:
                yield Samples()[index]

    train(log, DataLoader(Buffered(), 8), epochs=2)


if __name__ == "__main__":
    record.main()
