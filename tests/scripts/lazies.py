"""Models whose optimizer comes before the data of their parameters, in one process, with a DataLoader."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

import record
from loops import samples
from model import CLASSES, FEATURES

ROWS = 4  # of a part of a batch on two ranks: as many as the layers have outputs, so that no draw tells by its shape what it is for


def lazy():
    return nn.Sequential(nn.LazyLinear(ROWS), nn.Tanh(), nn.LazyBatchNorm1d(), nn.Linear(ROWS, 600), nn.Tanh(), nn.LazyLinear(CLASSES))


def train(log, model, optimizer=None, epochs=2):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(epochs):
        for x, y in DataLoader(samples(), 2 * ROWS, shuffle=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            log.step(loss, model, optimizer)


@record.case
def shapes_by_the_first_batch(log):
    train(log, lazy())


@record.case
def shapes_by_a_first_run(log):
    model = lazy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with torch.no_grad():
        model(torch.randn(3, FEATURES))
    train(log, model, optimizer)


@record.case
def shapes_by_a_file(log):
    whole = lazy()
    whole(torch.randn(3, FEATURES))
    model = lazy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.load_state_dict(whole.state_dict())
    train(log, model, optimizer)


@record.case
def convolutions(log):
    model = nn.Sequential(nn.Unflatten(1, (2, -1)), nn.LazyConv1d(ROWS, 3), nn.ReLU(), nn.LazyInstanceNorm1d(affine=True), nn.Flatten(), nn.LazyLinear(CLASSES))
    train(log, model)


@record.case
def one_layer_is_never_reached(log):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = lazy(), nn.LazyLinear(7)

        def forward(self, x):
            return self.used(x)

    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in DataLoader(samples(), 2 * ROWS, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss, model.used, optimizer)


@record.case
def a_layer_comes_to_its_group_later(log):
    model = nn.Sequential(nn.LazyLinear(ROWS), nn.Tanh(), nn.LazyLinear(CLASSES))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
    optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.05})
    train(log, model, optimizer)


@record.case
def from_the_meta_device(log):
    """The optimizer has the parameters of the meta device, which get data by torch.utils.swap_tensors."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(FEATURES, ROWS), nn.Tanh(), nn.BatchNorm1d(ROWS), nn.Linear(ROWS, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.__future__.set_swap_module_params_on_conversion(True)
    model.to_empty(device="cpu")
    torch.__future__.set_swap_module_params_on_conversion(False)
    for layer in model:
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    train(log, model, optimizer)


if __name__ == "__main__":
    record.main()
