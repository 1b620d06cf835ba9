"""One process: what batches consist of, and what collates them."""

import collections

import numpy
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset

import record
from model import CLASSES, FEATURES, Classifier

COUNT = 21
Pair = collections.namedtuple("Pair", "x y")


def x_of(index):
    return torch.randn(FEATURES, generator=torch.Generator().manual_seed(index))


class Made(Dataset):
    """Samples as `make(index)` gives them."""

    def __init__(self, make, count=COUNT):
        self.make, self.count = make, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.make(index)


class Stream(IterableDataset):
    def __init__(self, make, count=COUNT):
        self.make, self.count = make, count

    def __iter__(self):
        return map(self.make, range(self.count))


def train(log, loader, loss_of, make_optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), model=None):
    model = model or Classifier()
    optimizer = make_optimizer(model.parameters())
    for batch in loader:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)


def both_ways(log, make, loss_of, collate=None, **options):
    """The same samples by index and as a stream."""
    train(log, DataLoader(Made(make), 8, shuffle=True, collate_fn=collate), loss_of, **options)
    train(log, DataLoader(Stream(make), 8, collate_fn=collate), loss_of, **options)


@record.case
def tuples(log):
    both_ways(log, lambda i: (x_of(i), i % CLASSES, float(i)), lambda model, b: F.cross_entropy(model(b[0]), b[1]))


@record.case
def lists(log):
    both_ways(log, lambda i: [x_of(i), torch.tensor(i % CLASSES)], lambda model, b: F.cross_entropy(model(b[0]), b[1]), make_optimizer=adamw)


@record.case
def named_tuples(log):
    both_ways(log, lambda i: Pair(x_of(i), i % CLASSES), lambda model, b: F.cross_entropy(model(b.x), b.y))


@record.case
def dictionaries(log):
    both_ways(log, lambda i: {"x": x_of(i), "y": i % CLASSES}, lambda model, b: F.cross_entropy(model(b["x"]), b["y"]), make_optimizer=adamw)


@record.case
def nested(log):
    def make(i):
        return {"inputs": {"halves": (x_of(i)[: FEATURES // 2], x_of(i)[FEATURES // 2 :])}, "targets": [i % CLASSES, 0.5]}

    def loss_of(model, b):
        return F.cross_entropy(model(torch.cat(b["inputs"]["halves"], 1)), b["targets"][0])

    both_ways(log, make, loss_of)


@record.case
def single_tensors(log):
    """No targets: the input is reconstructed."""
    network = nn.Sequential(nn.Linear(FEATURES, 600), nn.ReLU(), nn.Linear(600, FEATURES))
    both_ways(log, x_of, lambda model, x: F.mse_loss(model(x), x), model=network)


@record.case
def arrays_of_numpy(log):
    def make(i):
        return numpy.asarray(x_of(i)), numpy.int64(i % CLASSES)

    both_ways(log, make, lambda model, b: F.cross_entropy(model(b[0]), b[1]))


def sample_with_words(i):
    return {"x": x_of(i), "y": i % CLASSES, "word": "a" * (1 + i % 4), "place": (i, f"line {i}")}


def loss_by_words(model, b):
    """The strings of a batch are those of its samples."""
    lengths = torch.tensor([len(word) for word in b["word"]])
    places = torch.tensor([int(line.split()[1]) for line in b["place"][1]])
    assert torch.equal(places, b["place"][0]) and torch.equal(places % 4 + 1, lengths)
    return (F.cross_entropy(model(b["x"]), b["y"], reduction="none") / lengths).mean()


@record.case
def strings_and_numbers(log):
    both_ways(log, sample_with_words, loss_by_words)


def collate_words(samples):
    return {
        "x": torch.stack([s["x"] for s in samples]),
        "y": torch.tensor([s["y"] for s in samples]),
        "word": [s["word"] for s in samples],
        "place": (torch.tensor([s["place"][0] for s in samples]), [s["place"][1] for s in samples]),
    }


@record.case
def collated_words(log):
    both_ways(log, sample_with_words, loss_by_words, collate=collate_words, make_optimizer=adamw)


@record.case
def whole_batches_with_words(log):
    """batch_size=None: the dataset makes the batches, and strings are lists beside the tensors."""
    data = [collate_words([sample_with_words(8 * k + i) for i in range(size)]) for k, size in enumerate((8, 5, 3))]
    train(log, DataLoader(data, batch_size=None), loss_by_words)


@record.case
def collated_into_an_object(log):
    class Batch:
        def __init__(self, samples):
            self.x = torch.stack([x for x, _ in samples])
            self.y = torch.tensor([y for _, y in samples])

        def to(self, device):
            self.x, self.y = self.x.to(device), self.y.to(device)
            return self

    def loss_of(model, b):
        b = b.to("cpu")
        return F.cross_entropy(model(b.x), b.y)

    both_ways(log, lambda i: (x_of(i), i % CLASSES), loss_of, collate=Batch)


def rows_of(i):
    """A sequence of 1 to 4 rows."""
    return torch.stack([x_of(10 * i + k) for k in range(1 + i % 4)]), i % CLASSES


@record.case
def padded(log):
    """Sequences padded to the longest of the batch, and their lengths: the mean over each one's own rows."""

    def collate(samples):
        lengths = torch.tensor([len(x) for x, _ in samples])
        return pad_sequence([x for x, _ in samples], batch_first=True), lengths, torch.tensor([y for _, y in samples])

    def loss_of(model, b):
        x, lengths, y = b
        mask = torch.arange(x.shape[1]) < lengths[:, None]
        return F.cross_entropy(model((x * mask[..., None]).sum(1) / lengths[:, None]), y)

    both_ways(log, rows_of, loss_of, collate=collate)


@record.case
def ragged(log):
    """A list of sequences of different lengths."""

    def collate(samples):
        return [x for x, _ in samples], torch.tensor([y for _, y in samples])

    def loss_of(model, b):
        return F.cross_entropy(torch.stack([model(x).mean(0) for x in b[0]]), b[1])

    both_ways(log, rows_of, loss_of, collate=collate, make_optimizer=adamw)


@record.case
def packed_end_to_end(log):
    """Sequences one behind the other, and where each begins."""

    def collate(samples):
        offsets = torch.tensor([0, *[len(x) for x, _ in samples]]).cumsum(0)
        return torch.cat([x for x, _ in samples]), offsets, torch.tensor([y for _, y in samples])

    def loss_of(model, b):
        x, offsets, y = b
        logits = model(x)
        return F.cross_entropy(torch.stack([logits[i:j].mean(0) for i, j in zip(offsets, offsets[1:])]), y)

    both_ways(log, rows_of, loss_of, collate=collate)


@record.case
def count_beside(log):
    """The loss is a sum, divided by the number that the collation gives."""

    def collate(samples):
        return torch.stack([x for x, _ in samples]), torch.tensor([y for _, y in samples]), len(samples)

    def loss_of(model, b):
        return F.cross_entropy(model(b[0]), b[1], reduction="sum") / b[2]

    both_ways(log, lambda i: (x_of(i), i % CLASSES), loss_of, collate=collate)


@record.case
def spawned_collation(log):
    """A stream whose batches are collated in a process that was started anew."""
    loader = DataLoader(WordStream(), 8, num_workers=1, multiprocessing_context="spawn", collate_fn=collate_words)
    train(log, loader, loss_by_words)


class WordStream(IterableDataset):
    def __iter__(self):
        return map(sample_with_words, range(COUNT))


@record.case
def collated_by_workers_that_stay(log):
    loader = DataLoader(WordStream(), 8, num_workers=2, persistent_workers=True)
    for _ in range(2):
        train(log, loader, loss_by_words)


if __name__ == "__main__":
    record.main()
