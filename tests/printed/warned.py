"""Makes PyTorch warn of the script, of lines that it finds by counting its callers."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Linear(4, 2)
model.register_full_backward_hook(lambda *_: None)  # no input requires gradients: a warning at the first backward
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
scheduler.step()  # before the optimizer: another
for x, y in DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 2)), 8, pin_memory=True):  # no device: another
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    scheduler.step(3)  # of an epoch: another
print(f"{loss.item():.4f}")
