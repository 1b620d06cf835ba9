"""How a single process makes models, before its optimizer is built."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import record

WIDTH = 512


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(32, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x)


def train(log, model, optimizer):
    log.parameters(model, "made")
    generator = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randn(24, 32, generator=generator), torch.randint(0, 5, (24,), generator=generator))
    for x, y in DataLoader(data, 8, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def sgd(log):
    torch.manual_seed(1)
    model = Network()
    log.note("random state", torch.get_rng_state())
    train(log, model, torch.optim.SGD(model.parameters(), lr=0.05))


@record.case
def adam(log):
    torch.manual_seed(2)
    model = Network()
    model.apply(lambda module: nn.init.normal_(module.weight, std=0.02) if isinstance(module, nn.Linear) else None)
    train(log, model, torch.optim.Adam(model.parameters(), lr=1e-3))


@record.case
def copied_and_edited(log):
    torch.manual_seed(3)
    model = Network()
    model.layers = nn.ModuleList(copy.deepcopy(model.layers[0]) for _ in range(4))
    model.load_state_dict(Network().state_dict())
    with torch.no_grad():
        model.layers[2].weight.mul_(0.5)
        model.layers[3].weight.data.numpy()[7] = 0.25
        nn.init.orthogonal_(model.layers[1].weight)
    train(log, model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))


@record.case
def frozen_teacher(log):
    """A second model that no optimizer has."""
    torch.manual_seed(4)
    model, teacher = Network(), Network().requires_grad_(False)
    train(log, model, torch.optim.SGD(model.parameters(), lr=0.05))
    log.parameters(teacher, "teacher")
    with torch.no_grad():
        teacher.layers[0].weight.add_(1)
    log.parameters(teacher, "teacher, edited")


if __name__ == "__main__":
    record.main()
