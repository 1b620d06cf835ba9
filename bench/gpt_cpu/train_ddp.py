"""A plain DistributedDataParallel script, started by torchrun: what Castor is given, and what it is compared with."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from model import GPT, SIZES, batches
from recorder import Recorder, arguments

args = arguments((["--bucket-view"], dict(action="store_true", help="gradients are views of DDP's buckets")))
torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")

model = DistributedDataParallel(GPT(**SIZES[args.size]), gradient_as_bucket_view=args.bucket_view)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
recorder = Recorder(args, model.module.count_parameters())
data = batches(args.size, args.batch, dist.get_rank())

for step in range(args.steps):
    inputs, targets = next(data)
    recorder.begin()
    loss = model(inputs, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    recorder.end(loss)

dist.destroy_process_group()
