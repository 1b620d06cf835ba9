"""One process whose losses are means over what is counted, of which the parts of a batch have more or less."""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import record
from model import CLASSES, FEATURES, Classifier

LENGTH = 6
IGNORED = -100


def sequences(count=27, seed=3):
    """Labels of sequences of different lengths; some sequences have none at all."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, LENGTH, FEATURES, generator=generator)
    y = torch.randint(0, CLASSES, (count, LENGTH), generator=generator)
    lengths = torch.randint(0, LENGTH + 1, (count, 1), generator=generator)
    return TensorDataset(x, torch.where(torch.arange(LENGTH) < lengths, y, IGNORED))


def train(log, loss_of, data=None, batch_size=8, shuffle=True, parts=1):
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for index, (x, y) in enumerate(DataLoader(data or sequences(), batch_size, shuffle=shuffle)):
        loss = loss_of(model(x), y) / parts
        loss.backward()
        if (index + 1) % parts == 0:
            optimizer.step()
            log.step(loss, model, optimizer)
            optimizer.zero_grad()
    return model


def cross_entropy(logits, y, **settings):
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), **settings)


@record.case
def ignored(log):
    train(log, cross_entropy)


@record.case
def ignored_accumulated(log):
    train(log, cross_entropy, parts=2)


@record.case
def ignored_with_penalty(log):
    """Terms made of parameters alone are the same on every rank. 27 samples in sixes: parts differ in samples, too."""
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(sequences(), 6, shuffle=True):
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y) + 0.1 * sum(p.pow(2).mean() for p in model.parameters())
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def ignored_in_a_whole_part(log):
    """The last sequences of each batch have no labels: there are ranks without any."""
    data = sequences(24)
    x, y = data.tensors
    y[:, 0] = 1
    y[torch.arange(24) % 8 >= 4] = IGNORED
    train(log, cross_entropy, TensorDataset(x, y), shuffle=False)
    train(log, lambda logits, y: cross_entropy(logits, y, label_smoothing=0.1), TensorDataset(x, y), shuffle=False)


@record.case
def ignored_index_of_its_own(log):
    data = sequences()
    x, y = data.tensors
    train(log, lambda logits, y: cross_entropy(logits, y, ignore_index=0), TensorDataset(x, y.clamp(min=0)))


@record.case
def ignored_in_double_precision(log):
    """The order of sums hardly shows: what is left would be a mistake."""
    model = Classifier().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(sequences(29), 7, shuffle=True):
        optimizer.zero_grad()
        loss = cross_entropy(model(x.double()), y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def classes_weighed(log):
    weight = torch.linspace(0.2, 3.0, CLASSES)
    train(log, lambda logits, y: cross_entropy(logits, y, weight=weight))


@record.case
def labels_smoothed(log):
    train(log, lambda logits, y: cross_entropy(logits, y, label_smoothing=0.1))


@record.case
def labels_smoothed_and_classes_weighed(log):
    weight = torch.linspace(0.2, 3.0, CLASSES)
    train(log, lambda logits, y: cross_entropy(logits, y, label_smoothing=0.1, weight=weight))


@record.case
def classes_in_the_second_dimension(log):
    train(log, lambda logits, y: F.cross_entropy(logits.transpose(1, 2), y))


@record.case
def log_probabilities(log):
    train(log, lambda logits, y: F.nll_loss(logits.log_softmax(-1).flatten(0, 1), y.flatten()))


@record.case
def sum_divided_by_its_count(log):
    """As a Hugging Face Trainer does it."""

    def loss_of(logits, y):
        return cross_entropy(logits, y, reduction="sum") / (y != IGNORED).sum()

    train(log, loss_of)


@record.case
def masked_sum(log):
    def loss_of(logits, y):
        losses, mask = cross_entropy(logits, y, reduction="none"), (y != IGNORED).flatten()
        return (losses * mask).sum() / mask.sum().clamp(min=1)

    train(log, loss_of)


def mean_of_selected(logits, y):
    return cross_entropy(logits, y, reduction="none")[(y != IGNORED).flatten()].mean()


@record.case
def elements_selected(log):
    """A mean over what a mask selects cannot be told from one over what was padded."""
    train(log, mean_of_selected)


@record.case
def padded_to_the_longest(log):
    """Each part of a batch is padded to its own longest sequence, and the mean is over the padding, too."""

    def collate(items):
        longest = max(int((y != IGNORED).sum()) for _, y in items) + 1
        return torch.stack([x[:longest] for x, _ in items]), torch.stack([y[:longest] for _, y in items])

    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(sequences(), 4, shuffle=True, collate_fn=collate):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x).mean(-1), y.clamp(min=0).float())
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def two_heads(log):
    """The first counts all labels, the second some."""

    def loss_of(logits, y):
        return cross_entropy(logits, y.clamp(min=0)) + cross_entropy(logits, y)

    train(log, loss_of)


@record.case
def another_mean_beside(log):
    def loss_of(logits, y):
        return cross_entropy(logits, y) + 1e-3 * logits.pow(2).mean()

    train(log, loss_of)


@record.case
def contrastive(log):
    """The samples of a batch are each other's classes."""

    def loss_of(logits, y):
        codes = F.normalize(logits.flatten(1), dim=1)
        return F.cross_entropy(codes @ codes.roll(1, 1).T, torch.arange(len(codes)))

    train(log, loss_of)


@record.case
def sums_accumulated(log):
    """Sums over the samples of two batches."""
    train(log, lambda logits, y: 0.01 * cross_entropy(logits, y, reduction="sum"), parts=2)


@record.case
def sums_divided_by_what_two_batches_count(log):
    """As transformers' Trainer does when it accumulates: the number of targets of both, in a tensor."""
    train(log, lambda logits, y: cross_entropy(logits, y.clamp(min=0), reduction="sum") / (2 * torch.ones_like(y).sum()), parts=2)


@record.case
def not_counted(log):
    train(log, lambda logits, y: logits.logsumexp((0, 1, 2)))


@record.case
def loss_for_each_sample(log):
    """27 samples in fives: as many losses as the part has samples."""
    data = TensorDataset(sequences().tensors[0], torch.ones(27, LENGTH))
    train(log, lambda logits, y: torch.stack([F.mse_loss(a.mean(-1), b) for a, b in zip(logits, y)]).mean(), data, 5)


def distilled(logits, y):
    """The mean over samples of each sample's two losses."""
    logits, teacher = logits.mean(1), torch.full((len(y), CLASSES), 1 / CLASSES)
    divergence = F.kl_div(F.log_softmax(logits, -1), teacher, reduction="none").sum(1).mean()
    return 0.5 * F.cross_entropy(logits, y, reduction="none").mean() + 0.5 * divergence


@record.case
def one_sample_left(log):
    """25 samples in eights: the last batch has one, and so has no part but one."""
    data = TensorDataset(sequences(25).tensors[0], torch.arange(25) % CLASSES)
    train(log, distilled, data)


if __name__ == "__main__":
    record.main()
