"""Plain PyTorch for GPUs: NCCL, DistributedDataParallel with device_ids, pinned memory, autocast and a scaler. It prints its losses."""
import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
device = torch.device("cuda", local_rank)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to(device)
model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[local_rank], output_device=local_rank)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cuda")
for step in range(3):
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(step * 10 + local_rank)).pin_memory().to(device, non_blocking=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    total = loss.detach().clone()
    dist.all_reduce(total)
    if local_rank == 0:
        print(total.item())
dist.barrier()
dist.destroy_process_group()
