"""What the cases train, and their batches: the same in every process. Parameters below a page, and of several mebibytes."""
import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts"))
from model import GPT  # noqa: E402, F401

FEATURES, CLASSES, WORDS, LENGTH = 256, 10, 256, 32


class MLP(nn.Module):
    def __init__(self, width=768, depth=2):
        super().__init__()
        self.enter = nn.Linear(FEATURES, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(depth))
        self.head = nn.Linear(width, CLASSES)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            self.seen += len(x)
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class Convolutions(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(2 * width, CLASSES)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


class LSTM(nn.Module):
    def __init__(self, width=320):
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, WORDS)

    def forward(self, tokens):
        return self.head(self.lstm(self.words(tokens))[0])


class Adversary(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Linear(width, 1))

    def forward(self, x):
        return self.layers(x)


def batch(step, size=8):
    """Vectors and their classes, a batch of its own for every step."""
    generator = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(size, FEATURES, generator=generator)
    return x.to("cuda"), torch.randint(0, CLASSES, (size,), generator=generator).to("cuda")


def images(step, size=2):
    x, y = batch(step, size)
    return x[:, :192].reshape(size, 3, 8, 8), y


def tokens(step, size=2):
    """Texts and the words that follow."""
    text = torch.randint(0, WORDS, (size, LENGTH + 1), generator=torch.Generator().manual_seed(2000 + step)).to("cuda")
    return text[:, :-1], text[:, 1:]


def text_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def train(log, model, optimizer, steps=4, draw=batch, loss_of=F.cross_entropy):
    """The loop of cases that are about something else."""
    for step in range(steps):
        x, y = draw(step)
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


def train_on_texts(log, model, optimizer, sizes):
    """The same of a GPT, which returns its loss: a batch of each of the sizes."""
    for step, size in enumerate(sizes):
        x, y = tokens(step, size)
        optimizer.zero_grad()
        _, loss = model(x, y)
        loss.backward()
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)
