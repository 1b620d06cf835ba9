"""A model that PyTorch's fully_shard divides over the ranks: parameters, gradients and states are DTensors."""
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

cuda = torch.cuda.is_available()
rank, device = int(os.environ["RANK"]), "cuda" if cuda else "cpu"
if cuda:
    torch.cuda.set_device(rank)
mesh = init_device_mesh(device, (int(os.environ["WORLD_SIZE"]),))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)).to(device)
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
torch.manual_seed(1 + rank)
for _ in range(3):
    x = torch.randn(16, 256).to(device)
    loss = torch.nn.functional.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {rank} {loss.item()}\n", end="", flush=True)
if cuda:
    print(f"peak {rank} {rank} {torch.cuda.max_memory_allocated()}\n", end="", flush=True)
dist.destroy_process_group()
