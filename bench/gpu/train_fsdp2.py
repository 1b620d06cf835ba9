"""The same training with FSDP2 (`fully_shard`) and CPU offload, as its documentation writes it, in one process."""
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

import gpt

args = gpt.arguments()
torch.cuda.set_device(0)
dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda", 0))
mesh = init_device_mesh("cuda", (1,))

model = gpt.make(args.size)
count = sum(parameter.numel() for parameter in model.parameters())
precision = MixedPrecisionPolicy() if args.fp32 else MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
policy = dict(mesh=mesh, mp_policy=precision, offload_policy=CPUOffloadPolicy())
for block in model.blocks:
    fully_shard(block, **policy)
fully_shard(model, **policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
data = gpt.data_of(args.size, args.batch)
record = gpt.Record(args, count)

for step in range(args.steps):
    record.begin()
    total = 0.0
    for micro in range(args.accumulate):
        inputs, targets = next(data)
        model.set_requires_gradient_sync(micro + 1 == args.accumulate)
        loss = model(inputs, targets).float() / args.accumulate
        loss.backward()
        total += loss.detach()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    record.end(total, norm.full_tensor() if hasattr(norm, "full_tensor") else norm)

dist.destroy_process_group()
