"""What train.py trains, and its batches: the same in every process."""
import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts"))
from model import GPT, Classifier  # noqa: E402

FEATURES, CLASSES = 32, 5


class Convolution(nn.Module):
    """With batch norms, a float buffer, and floats that it makes itself."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1),
                                      nn.BatchNorm2d(32), nn.ReLU())
        self.register_buffer("weights", torch.rand(8))
        self.middle = nn.Linear(32 * 8, 64)
        self.head = nn.Linear(64, CLASSES)
        self.middle.weight.requires_grad_(False)

    def forward(self, x):
        x = self.features(x.view(-1, 1, 4, 8)).mean(2) * self.weights
        x = torch.relu(self.middle(x.flatten(1)))
        return self.head(x + torch.linspace(-1, 1, 64))


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.gpt = GPT(width=160, layers=1)

    def forward(self, x):
        return self.gpt(x)[0]


class Counting(Classifier):
    """Writes its buffers: one in place, one anew."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.tensor(300.0))  # a bfloat16 has no 301
        self.register_buffer("mean", torch.zeros(FEATURES))
        self.register_buffer("anew", torch.zeros(FEATURES))
        self.register_buffer("constant", torch.full((3,), 0.1))

    def forward(self, x):
        if self.training:
            self.seen += 1
            self.mean.mul_(0.999).add_(x.detach().mean(0), alpha=0.001)
            self.anew = self.anew * 0.999 + x.detach().mean(0) * 0.001
        return super().forward(x)


MODELS = {"counting": Counting, "mlp": Classifier, "gpt": Tokens, "convolution": Convolution}


def build(name):
    torch.manual_seed(1234)
    model = MODELS[name]()
    if name in ("mlp", "counting"):  # some gradients must be large, and some small
        model.head.weight.data.mul_(4)
    return model


def batch(name, step, rank, size=8):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    if name == "gpt":
        tokens = torch.randint(0, 256, (size // 2, 17), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]
    return torch.randn(size, FEATURES, generator=generator), torch.randint(0, CLASSES, (size,), generator=generator)


def loss_of(output, targets):
    assert output.dtype is torch.float32, output.dtype
    return F.cross_entropy(output.flatten(0, -2), targets.flatten())


def optimizer_for(name, parameters):
    make = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-4),
        "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
        "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.05),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2, initial_accumulator_value=0.1),
        "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1),
    }
    return make[name](list(parameters))
