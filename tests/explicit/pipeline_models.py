"""Two stages, with tensor parallelism of castor.tensor in each of them, and of models whose layers look at a batch or draw random numbers,
beside the whole model: see test_pipeline.py."""
import copy

import torch
import torch.nn.functional as F
from torch import nn

import castor
from castor.engine import schedule as schedules
from castor.engine._parallel_groups import groups
from castor.pipeline import partition
from castor.tensor import ColoParameter, ColoTensor, ColoTensorSpec, ComputePattern, ComputeSpec, ProcessGroup, ShardSpec

BATCH, MICROBATCHES = 12, 3
OPTIMIZERS = {"sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "adamw": lambda p: torch.optim.AdamW(p, lr=0.01)}
wrong, compared = [], 0


def whole(tensor):
    return tensor.to_replicate() if isinstance(tensor, ColoTensor) else tensor


def same(name, got, expected):
    global compared
    compared += 1
    if got is None or got.shape != expected.shape or not torch.allclose(got.detach(), expected.detach(), rtol=1e-9, atol=1e-9):
        wrong.append(f"{name}: {got} instead of {expected}")


def linears():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8), nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))


def ends_divided():
    """What each stage gives is divided at its last dimension, if activations are not gathered."""
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))


def images():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Dropout(0.3), nn.Linear(16, 16), nn.Linear(16, 8))


def divide(stage, group, gathered=True):
    """The linear layers of a stage by rows and by columns in turn, as a multilayer perceptron's."""
    for number, layer in enumerate(layer for layer in stage if isinstance(layer, nn.Linear)):
        compute = ComputeSpec(ComputePattern.TP1D)
        compute.set_output_replicate(gathered)
        for name in ("weight", "bias") if number % 2 == 0 else ("weight",):
            parameter = ColoParameter(getattr(layer, name).detach().clone(), spec=ColoTensorSpec(group))
            parameter.set_tensor_spec(ShardSpec([-1 if number % 2 else 0], [group.tp_world_size()]), compute)
            setattr(layer, name, parameter)


def at_once(parts, data, label):
    """(output, loss) of the whole model, with gradients."""
    output = nn.Sequential(*parts)(data)
    loss = F.mse_loss(output, label)
    loss.backward()
    return output, loss


class InMicrobatches:
    """The same in microbatches, one after another; each part draws from a generator of its own, seeded as its stage's."""

    def __init__(self):
        self.states = [torch.Generator().manual_seed(5 + stage).get_state() for stage in range(2)]

    def __call__(self, parts, data, label):
        outputs, total, own = [], 0, torch.get_rng_state()
        for x, y in zip(data.chunk(MICROBATCHES), label.chunk(MICROBATCHES)):
            for stage, part in enumerate(parts):
                torch.set_rng_state(self.states[stage])
                x = part(x)
                self.states[stage] = torch.get_rng_state()
            loss = F.mse_loss(x, y) / MICROBATCHES
            loss.backward()
            outputs.append(x.detach())
            total += loss.detach()
        torch.set_rng_state(own)
        return torch.cat(outputs), total


def beside_the_whole(case, make, optimizer, reference=at_once, change=lambda stage: None, clipped=0.0, schedule=None):
    """Three steps of a stage, changed by `change`, beside the whole model's."""
    job, generator = groups(), torch.Generator().manual_seed(3)
    torch.manual_seed(1)
    model = make().double()
    parts = partition(model, 2)
    stage = copy.deepcopy(parts[job.stage])
    change(stage)
    plain = OPTIMIZERS[optimizer](model.parameters())
    engine, *_ = castor.initialize(stage, OPTIMIZERS[optimizer](stage.parameters()), F.mse_loss, clip_grad_norm=clipped, verbose=False,
                                   schedule=schedule or schedules.PipelineSchedule(MICROBATCHES))
    torch.manual_seed(5 + job.stage)
    case = f"{case}, {optimizer}"
    for step in range(3):
        data = torch.randn((BATCH, 1, 8, 8) if make is images else (BATCH, 8), generator=generator, dtype=torch.float64)
        label = torch.randn((BATCH, 8), generator=generator, dtype=torch.float64)
        plain.zero_grad()
        expected, loss = reference(parts, data, label)
        if clipped:
            nn.utils.clip_grad_norm_(model.parameters(), clipped)
        engine.zero_grad()
        output, _, got = engine.execute_schedule(iter([(data, label)]))
        if job.stage == 1:
            same(f"{case}: output {step}", whole(output), expected)
            same(f"{case}: loss {step}", whole(got), loss.view(1))
        engine.step()
        of_stage = list(parts[job.stage].named_parameters())
        for (name, expected), mine in zip(of_stage, stage.parameters(), strict=True):
            same(f"{case}: gradient of {name} {step}", whole(mine.grad), expected.grad)
        plain.step()
        for (name, expected), mine in zip([*of_stage, *parts[job.stage].named_buffers()], [*stage.parameters(), *stage.buffers()], strict=True):
            same(f"{case}: {name} {step}", whole(mine), expected)
    model.eval()
    engine.eval()
    output, _, _ = engine.execute_schedule(iter([(data, label)]), forward_only=True)
    if job.stage == 1:
        same(f"{case}: evaluation", whole(output), model(data))


def run():
    """[the first comparisons that failed, the number of comparisons]."""
    group = ProcessGroup(tp_degree=2)
    for optimizer in OPTIMIZERS:
        beside_the_whole("divided", linears, optimizer, change=lambda stage: divide(stage, group))
        beside_the_whole("divided, with activations", linears, optimizer, change=lambda stage: divide(stage, group, False))
        beside_the_whole("given divided", ends_divided, optimizer, change=lambda stage: divide(stage, group, False))
        beside_the_whole("divided, clipped", linears, optimizer, change=lambda stage: divide(stage, group), clipped=0.05)
        beside_the_whole("images", images, optimizer, InMicrobatches())
    for schedule in (schedules.PipelineSchedule(6, scatter_gather_tensors=True), schedules.ZeroBubblePipelineSchedule(3)):
        beside_the_whole(type(schedule).__name__, linears, "sgd", change=lambda stage: divide(stage, group), schedule=schedule)
    beside_the_whole("zero bubble, images", images, "adamw", InMicrobatches(), schedule=schedules.ZeroBubblePipelineSchedule(3))
    return [[text[:600] for text in wrong[:4]], compared]
