"""Pipelines and divided tensors on (simulated) devices, over NCCL, beside the whole model on the same device: see test_parallel_devices.py."""
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import castor
from castor.engine import schedule as schedules
from castor.engine._parallel_groups import groups
from castor.pipeline import partition
from castor.tensor import ColoParameter, ColoTensorSpec, ComputePattern, ComputeSpec, ProcessGroup, ShardSpec
from found import end, found

wrong, compared = [], 0
KINDS = {"sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "adamw": lambda p: torch.optim.AdamW(p, lr=0.01)}


def same(name, got, expected):
    global compared
    compared += 1
    if got is None or got.device != expected.device or not torch.allclose(got, expected, rtol=1e-5, atol=1e-6):
        wrong.append(f"{name}: {got} instead of {expected}")


def train_stages(optimizer, microbatches, device):
    def made():
        torch.manual_seed(1)
        return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.Tanh()))).to(device)

    job, generator = groups(), torch.Generator().manual_seed(3)
    whole, part = made(), partition(made(), job.stages)[job.stage]
    references = list(partition(whole, job.stages)[job.stage].parameters())
    plain = KINDS[optimizer](whole.parameters())
    engine, *_ = castor.initialize(part, KINDS[optimizer](part.parameters()), F.mse_loss, schedule=schedules.PipelineSchedule(microbatches), verbose=False)
    replica, case = dist.get_rank() // job.stages, f"{optimizer}, {microbatches} microbatches"
    for step in range(2):
        data, label = (torch.randn(8 * job.data_size, 16, generator=generator).to(device) for _ in range(2))
        own = slice(8 * replica, 8 * replica + 8)
        plain.zero_grad()
        F.mse_loss(whole(data), label).backward()
        engine.zero_grad()
        _, _, loss = engine.execute_schedule(iter([(data[own], label[own])]))
        if loss is not None:
            same(f"{case}: loss {step}", loss, F.mse_loss(whole(data)[own], label[own]).detach().view(1))
        engine.step()
        for number, (got, reference) in enumerate(zip(part.parameters(), references)):
            same(f"{case}: gradient {number} of step {step}", got.grad, reference.grad)
        plain.step()
        for number, (got, reference) in enumerate(zip(part.parameters(), references)):
            same(f"{case}: parameter {number} of step {step}", got.detach(), reference.detach())


def divide(dimension, device):
    torch.manual_seed(2)
    group = ProcessGroup(tp_degree=dist.get_world_size())
    weight, data = torch.randn(8, 8, device=device), torch.randn(4, 8, device=device)
    reference = weight.clone().requires_grad_()
    divided = ColoParameter(weight, spec=ColoTensorSpec(group))
    divided.set_tensor_spec(ShardSpec([dimension], [group.tp_world_size()]), ComputeSpec(ComputePattern.TP1D))
    expected, output = F.linear(data, reference), F.linear(data, divided)
    expected.square().sum().backward()
    output.square().sum().backward()
    size = 8 // group.tp_world_size()
    own = reference.grad.narrow(dimension, size * group.tp_local_rank(), size)
    same(f"the gradient of a weight divided on {dimension}", torch.Tensor(divided.grad.as_subclass(torch.Tensor)), own)


def main():
    castor.launch_from_torch({"parallel": {"pipeline": int(sys.argv[1])}}, verbose=False)
    device = torch.device("cuda", torch.cuda.current_device())
    found("backend", dist.get_backend())
    for optimizer in KINDS:
        for microbatches in (1, 4):
            train_stages(optimizer, microbatches, device)
    for dimension in (0, 1):
        divide(dimension, device)
    found("wrong", wrong[:4])
    found("compared", compared)
    end()


main()
