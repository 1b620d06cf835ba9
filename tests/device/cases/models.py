"""Kinds of networks."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parametrizations, parametrize

from . import case
from .networks import CLASSES, FEATURES, GPT, LENGTH, LSTM, MLP, WORDS, Convolutions, batch, images, text_loss, tokens, train, train_on_texts


@case
def gpt(log, make):
    model = GPT(context=LENGTH, layers=3).to("cuda")
    model.head.weight = nn.Parameter(model.tokens.weight.detach().clone())  # not tied
    optimizer = make(model.parameters())
    for step in range(5):
        x, y = tokens(step, 4)
        optimizer.zero_grad()
        logits, loss = model(x, y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        log.step(loss, norm=norm)
    log.end(model, optimizer)


@case
def many_activations(log, make):
    """Made on the device, of 20 MiB, whose passes take as much again as all of the model's data."""
    with torch.device("cuda"):
        model = GPT(context=LENGTH, layers=4)
    train_on_texts(log, model, make(model.parameters()), 3 * [32])


@case
def tied(log, make):
    """The embedding is the output layer too."""
    model = GPT(context=LENGTH).to("cuda")
    optimizer = make(model.parameters())
    for step in range(4):
        x, y = tokens(step)
        optimizer.zero_grad()
        _, loss = model(x, y)
        loss.backward()
        optimizer.step()
        log.step(loss, tied=model.head.weight is model.tokens.weight)
    log.end(model, optimizer)


@case
def mlp(log, make):
    model = MLP().to("cuda")
    optimizer = make(model.parameters())
    for step in range(5):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


@case
def wide(log, make):
    """Parameters of several segments of PyTorch's."""
    model = MLP(width=1536).cuda()
    train(log, model, make(model.parameters()), 3)


@case
def convolution(log, make):
    model = Convolutions().to("cuda", memory_format=torch.channels_last)
    optimizer = make(model.parameters())
    for step in range(4):
        x, y = images(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(memory_format=torch.channels_last)), y)
        loss.backward()
        optimizer.step()
        log.step(loss)
    model.eval()
    with torch.no_grad():
        log.note("evaluated", model(images(9)[0]))
    log.end(model, optimizer)


@case
def lstm(log, make):
    model = LSTM().to("cuda")
    train(log, model, make(model.parameters()), draw=tokens, loss_of=text_loss)


@case
def transformer(log, make):
    """With dropout, whose numbers must be drawn as often."""
    encoder = nn.TransformerEncoderLayer(FEATURES, 4, 4 * FEATURES, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.Embedding(WORDS, FEATURES), nn.TransformerEncoder(encoder, 2, enable_nested_tensor=False), nn.Linear(FEATURES, WORDS)).cuda()
    train(log, model, make(model.parameters()), draw=tokens, loss_of=text_loss)


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)


@case
def parametrized(log, make):
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(FEATURES, 768)), nn.Tanh(), nn.Linear(768, 768), nn.Tanh(), nn.Linear(768, CLASSES))
    parametrize.register_parametrization(model[2], "weight", Symmetric())
    parametrizations.spectral_norm(model[4])
    model.to("cuda")
    train(log, model, make(model.parameters()))


@case
def lists(log, make):
    """Parameters that no layer holds."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))
            self.tables = nn.ParameterList(nn.Parameter(torch.randn(FEATURES, 1024) / 16) for _ in range(3))
            self.outputs = nn.ParameterDict({"a": nn.Parameter(torch.randn(1024, CLASSES) / 32)})
            self.register_buffer("shift", torch.linspace(-1, 1, 1024), persistent=False)

        def forward(self, x):
            return sum((x @ table + self.shift).relu() for table in self.tables) @ self.outputs["a"] * self.scale

    model = Model().cuda()
    train(log, model, make(model.parameters()))
