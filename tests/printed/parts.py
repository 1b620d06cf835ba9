"""Prints how many samples it gets. A Trainer's epochs: the first batches after an evaluation are drawn in evaluation mode."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 2)), 8)
for accumulate in (1, 1, 2):
    batches, trained = iter(loader), []
    while group := [batch for _, batch in zip(range(accumulate), batches)]:
        for x, y in group:
            model.train()
            nn.functional.mse_loss(model(x), y).backward()
            trained.append(len(x))
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    print("trained on", *trained, "looked at", *(len(x) for x, _ in loader))
