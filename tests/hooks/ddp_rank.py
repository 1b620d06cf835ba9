"""A rank that trains a small model under DistributedDataParallel and prints its losses and parameters in full."""
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(1 + dist.get_rank())
losses = []
for _ in range(4):
    loss = nn.functional.cross_entropy(model(torch.randn(16, 64)), torch.randint(8, (16,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item().hex())
sums = [p.double().sum().item().hex() for p in model.parameters()]
if dist.get_rank() == 0:
    print(losses, sums)
dist.destroy_process_group()
