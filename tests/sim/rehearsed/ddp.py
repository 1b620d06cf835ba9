"""A transformer in DistributedDataParallel: NCCL on devices, gloo without."""
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

cuda = torch.cuda.is_available()
dist.init_process_group("nccl" if cuda else "gloo")
rank = dist.get_rank()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)
mismatch = os.environ.get("MISMATCH")  # a bug that a script may have
classes = 1000
if mismatch == "parameter":
    dist.all_reduce(torch.ones(classes, device=device))
    classes += rank
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(1000, 64), torch.nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True), torch.nn.Linear(64, classes))
model = DistributedDataParallel(model.to(device), device_ids=[rank] if cuda else None)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(1 + rank)
for _ in range(3):
    tokens = torch.randint(0, 1000, (8, 32)).to(device)
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss.detach())
    print(f"loss {rank} {loss.item()}\n", end="", flush=True)  # in one piece, between those of other ranks
if rank == 0:
    dist.send(loss.detach(), 1)
else:
    dist.recv(torch.zeros((), device=device), 0)
if mismatch == "type":
    dist.all_reduce(loss.detach().view(torch.float32 if rank == 0 else torch.int32))
elif mismatch and rank == 0:
    dist.all_reduce(loss.detach())
elif mismatch == "absent":
    time.sleep(1000)
elif mismatch:
    dist.broadcast(loss.detach(), 0)
if cuda:
    print(f"peak {rank} {device.index} {torch.cuda.max_memory_allocated()}\n", end="", flush=True)
dist.destroy_process_group()
