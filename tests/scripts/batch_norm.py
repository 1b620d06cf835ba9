"""One process that normalizes over its batches, of which each rank has a part."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import record
from model import CLASSES

CHANNELS, SIZE = 3, 8
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


class Network(nn.Module):
    """Two convolutions without bias (a norm takes it out again), each with a norm behind it."""

    def __init__(self, dimensions=2, width=16, **settings):
        super().__init__()
        convolution, norm = CONVOLUTIONS[dimensions], NORMS[dimensions]
        self.first = convolution(CHANNELS, width, 3, bias=False)
        self.norm = norm(width, **settings)
        self.second = convolution(width, 2 * width, 3, stride=2, bias=False)
        self.last_norm = norm(2 * width, **settings)
        self.head = nn.Linear(2 * width, CLASSES)

    def features(self, x):
        return F.gelu(self.norm(self.first(x)))

    def forward(self, x):
        h = F.gelu(self.last_norm(self.second(self.features(x))))
        return self.head(h.flatten(2).mean(2))


def images(count=24, dimensions=2, seed=3):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, CHANNELS, *[SIZE] * dimensions, generator=generator)
    x = x * torch.linspace(0.5, 2.0, count).view(-1, *[1] * (dimensions + 1))  # parts with statistics of their own
    return TensorDataset(x, torch.randint(0, CLASSES, (count,), generator=generator))


def train(log, model, data=None, batch_size=8, lr=0.05, optimizer=None, parts=1, loss_of=F.cross_entropy):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for index, (x, y) in enumerate(DataLoader(data or images(), batch_size, shuffle=True)):
        loss = loss_of(model(x), y) / parts
        loss.backward()
        if (index + 1) % parts == 0:
            optimizer.step()
            log.step(loss, model, optimizer)
            optimizer.zero_grad()
    return model


@record.case
def convolution_sgd(log):
    train(log, Network())


@record.case
def convolution_adamw(log):
    model = Network()
    train(log, model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3))


@record.case
def one_dimension(log):
    train(log, Network(1), images(dimensions=1))


@record.case
def three_dimensions(log):
    train(log, Network(3), images(dimensions=3))


@record.case
def vectors(log):
    """Two dimensions, of which the second is the channels."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(CHANNELS * SIZE, 600, bias=False), nn.BatchNorm1d(600), nn.ReLU(), nn.Linear(600, CLASSES))
    train(log, model, images(dimensions=1))


@record.case
def tails(log):
    """17 samples in fives: parts of two and three, and a last batch that is smaller than the number of ranks."""
    train(log, Network(), images(17), batch_size=5)


@record.case
def tail_of_one(log):
    train(log, Network(), images(17))


@record.case
def in_double_precision(log):
    """The order of sums hardly shows: what is left would be a mistake."""
    x, y = images(29).tensors
    train(log, Network().double(), TensorDataset(x.double(), y), batch_size=7)


@record.case
def without_weights(log):
    train(log, Network(affine=False))


@record.case
def without_running_statistics(log):
    """Batches have statistics of their own in the evaluation, too."""
    model = train(log, Network(track_running_stats=False))
    model.eval()
    with torch.no_grad():
        log.note("validation loss", [F.cross_entropy(model(x), y).item() for x, y in DataLoader(images(13, seed=4), 6)])


@record.case
def cumulative_average(log):
    train(log, Network(momentum=None))


@record.case
def evaluated(log):
    """The running statistics, used."""
    model = Network()
    for epoch in range(2):
        train(log, model.train(), lr=0.02)
        model.eval()
        with torch.no_grad():
            losses = [F.cross_entropy(model(x), y).item() for x, y in DataLoader(images(13, seed=4), 6)]
        log.note("validation loss", losses)
        log.print(f"validation loss {sum(losses):.4f}")


@record.case
def frozen(log):
    """Norms in evaluation mode while the rest trains."""
    model = train(log, Network())
    model.norm.eval()
    model.last_norm.requires_grad_(False)
    train(log, model, lr=0.01)


@record.case
def accumulated(log):
    train(log, Network(), parts=3)


@record.case
def sum_of_losses(log):
    train(log, Network(), images(20), lr=0.005, loss_of=lambda logits, y: F.cross_entropy(logits, y, reduction="sum"))


@record.case
def parts_without_labels(log):
    """Samples without a label are in the statistics, and in no loss."""
    x, y = images().tensors
    y[torch.arange(24) % 8 >= 4] = -100
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for a, b in DataLoader(TensorDataset(x, y), 8):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def recomputed(log):
    """Activation checkpointing runs the norm twice, so that its running statistics move twice, too."""

    class Recomputing(Network):
        def features(self, x):
            return checkpoint(super().features, x, use_reentrant=False)

    train(log, Recomputing())


@record.case
def recomputed_reentrantly(log):
    class Recomputing(Network):
        def features(self, x):
            return checkpoint(super().features, x.requires_grad_(), use_reentrant=True)

    train(log, Recomputing())


@record.case
def without_gradients(log):
    """A slow copy of the network that sees the batches in training mode, under no_grad."""
    model = Network()
    slow = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in DataLoader(images(), 8, shuffle=True):
        with torch.no_grad():
            target = slow(x)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) + F.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(slow.parameters(), model.parameters()):
                a.lerp_(p, 0.1)
        log.step(loss, model, optimizer)
        log.note("buffers", dict(slow.named_buffers()))


@record.case
def bfloat16_model(log):
    x, y = images().tensors
    train(log, Network().bfloat16(), TensorDataset(x.bfloat16(), y))


@record.case
def autocast(log):
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in DataLoader(images(), 8, shuffle=True):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def channels_last(log):
    x, y = images().tensors
    train(log, Network().to(memory_format=torch.channels_last), TensorDataset(x, y))


@record.case
def as_a_function(log):
    """torch.nn.functional.batch_norm without a module."""
    model = nn.ModuleList([nn.Conv2d(CHANNELS, 16, 3, bias=False), nn.Linear(16, CLASSES)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in DataLoader(images(), 8, shuffle=True):
        optimizer.zero_grad()
        h = F.batch_norm(model[0](x), None, None, training=True)
        loss = F.cross_entropy(model[1](F.gelu(h).flatten(2).mean(2)), y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def one_batch_on_every_rank(log):
    """Batches made by hand, the same on every rank: the statistics are those of one."""
    x, y = images(8).tensors
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def statistics_of_an_average(log):
    """Running statistics made anew after training, in training mode under no_grad."""
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    average = torch.optim.swa_utils.AveragedModel(model)
    for x, y in DataLoader(images(), 8, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        log.step(loss, model, optimizer)
    torch.optim.swa_utils.update_bn(DataLoader(images(), 8), average)
    log.step(None, average)


@record.case
def other_norms(log):
    """They normalize each sample for itself."""
    model = nn.Sequential(
        nn.Conv2d(CHANNELS, 16, 3, bias=False), nn.InstanceNorm2d(16, affine=True), nn.GELU(), nn.GroupNorm(4, 16),
        nn.Flatten(), nn.LayerNorm(16 * 36), nn.Linear(16 * 36, CLASSES),
    )
    train(log, model, images(29))


def instances(**settings):
    return nn.Sequential(
        nn.Conv1d(CHANNELS, 16, 3, bias=False), nn.InstanceNorm1d(16, **settings), nn.GELU(), nn.Flatten(), nn.Linear(16 * 6, CLASSES)
    )


@record.case
def instance_norm(log):
    train(log, instances(), images(29, dimensions=1))


@record.case
def instance_norm_with_running_statistics(log):
    train(log, instances(affine=True, track_running_stats=True), images(dimensions=1))


@record.case
def compiled(log):
    model = Network()
    torch._dynamo.config.suppress_errors = False
    step = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in DataLoader(images(), 8, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(step(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def scripted(log):
    train(log, torch.jit.script(Network()))


@record.case
def scripted_after_others(log):
    train(log, Network())
    train(log, torch.jit.script(Network()))


if __name__ == "__main__":
    record.main()
