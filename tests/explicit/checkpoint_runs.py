"""Training whose every step is the same on any number of ranks: all of them have the same batch, and a mean of equal gradients is exact."""
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(48, 64), nn.Linear(64, 48)
        self.out = nn.Linear(48, 64, bias=False)
        self.out.weight = self.a.weight

    def forward(self, x):
        return self.out(self.b(torch.tanh(self.a(x))))


def started(seed, ddp=False, kind="AdamW"):
    torch.manual_seed(seed)
    model = Net()
    model = DistributedDataParallel(model) if ddp else model
    options = {"momentum": 0.9} if kind == "SGD" else {}
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.05, **options)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def run(model, optimizer, scheduler, steps):
    batch = torch.randn(8, 48, generator=torch.Generator().manual_seed(3))
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
