"""The same training with the peers, each as its own documentation writes it. Started by torchrun.

A peer is a function that takes the arguments and the model, built alike everywhere, and returns a function
`step(inputs, targets)` that trains one step, clipping at 1.0, and returns the loss.
"""

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.distributed as dist

from model import GPT, SIZES, batches
from recorder import Recorder, arguments

LEARNING_RATE = 3e-4
CLIP = 1.0


def zero(args, model):
    """ZeroRedundancyOptimizer on DDP: optimizer states sharded."""
    from torch.distributed.optim import ZeroRedundancyOptimizer
    model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.AdamW, lr=LEARNING_RATE, fused=True)

    def step(inputs, targets):
        loss = model(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def fsdp2(args, model):
    """fully_shard per block: parameters, gradients and states sharded."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)

    def step(inputs, targets):
        loss = model(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def deepspeed(args, model, stage):
    import deepspeed
    deepspeed.init_distributed(dist_backend="gloo")
    configuration = dict(
        train_micro_batch_size_per_gpu=args.batch, gradient_accumulation_steps=1, gradient_clipping=CLIP,
        zero_optimization=dict(stage=stage), zero_allow_untested_optimizer=True, steps_per_print=1 << 30)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=configuration)

    def step(inputs, targets):
        loss = engine(inputs, targets)
        engine.backward(loss)
        engine.step()
        return loss

    return step


PEERS = {
    "zero": zero,
    "fsdp2": fsdp2,
    "deepspeed2": lambda args, model: deepspeed(args, model, 2),
    "deepspeed3": lambda args, model: deepspeed(args, model, 3),
}

args = arguments((["--peer"], dict(required=True, choices=sorted(PEERS))))
torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")

model = GPT(**SIZES[args.size])
recorder = Recorder(args, model.count_parameters())
train_step = PEERS[args.peer](args, model)
data = batches(args.size, args.batch, dist.get_rank())

for step in range(args.steps):
    inputs, targets = next(data)
    recorder.begin()
    loss = train_step(inputs, targets)
    recorder.end(loss)

dist.destroy_process_group()
