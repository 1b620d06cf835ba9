"""Pipeline stages on each rank, beside the whole model on one batch: see test_pipeline.py."""
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import castor
from castor.agent.common import store
import pipeline_differing
import pipeline_models
import pipeline_zero_bubble
import split_backward
from castor.engine import schedule as schedules
from castor.engine._parallel_groups import groups
from castor.pipeline import partition
from found import end, found, raised

stages, tensor = int(sys.argv[1]), int(sys.argv[2])
BATCH = 12
PAGES = 1 << 16  # bytes; smaller parameters have no pages of their own to share


class Decoder(nn.Module):
    """The embedding's weight is the last layer's."""

    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding

    def forward(self, x):
        return F.linear(x, self.embedding.weight)


class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(11, 16), nn.Parameter(torch.randn(5, 16))

    def forward(self, x):
        return self.tokens(x) + self.positions


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.inner, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.wide = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.inner(self.before(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))
        return x + self.wide(x)


class Pair(nn.Module):
    """Gives a nesting of tensors, one of them without a gradient."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        x = x if isinstance(x, torch.Tensor) else x["hidden"][0] * x["scale"] + x["hidden"][1]
        return {"hidden": [self.inner(x), x], "scale": torch.full((1,), 2.0, dtype=x.dtype), "name": "pair"}


def sequential():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 8))


def wide():
    return nn.Sequential(*(nn.Linear(8 if n == 0 else 96, 96 if n < 4 else 8) for n in range(5)))


def tied():
    embedding = nn.Embedding(11, 8)
    return nn.Sequential(embedding, nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), Decoder(embedding))


def gpt():
    first = Embedded()
    return nn.Sequential(first, Block(), Block(), Block(), nn.LayerNorm(16), Decoder(first.tokens))


def nested():
    return nn.Sequential(Pair(), Pair(), Pair(), Pair(), _Last())


class _Last(nn.Module):
    def forward(self, x):
        return x["hidden"][0]


def images():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 16), nn.Linear(16, 8))


def batch(kind, count, generator):
    if kind in (tied, gpt, deep_tied):
        return torch.randint(0, 11, (count, 5), generator=generator), torch.randint(0, 11, (count, 5), generator=generator)
    shape = (count, 1, 8, 8) if kind is images else (count, 8)
    return torch.randn(shape, generator=generator, dtype=torch.float64), torch.randn((count, 8), generator=generator, dtype=torch.float64)


def criterion(output, label):
    return F.mse_loss(output, label) if label.is_floating_point() else F.cross_entropy(output.flatten(0, -2), label.flatten())


KINDS = {"sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "adamw": lambda p: torch.optim.AdamW(p, lr=0.01)}
wrong, compared, stored = [], 0, []


def same(name, got, expected):
    global compared
    compared += 1
    if got is None or got.shape != expected.shape or not torch.allclose(got, expected, rtol=1e-9, atol=1e-9):
        wrong.append(f"{name}: {got} instead of {expected}")


def train(kind, optimizer, microbatches, chunks=0, clipped=0.0, cls=schedules.PipelineSchedule, **more):
    """Three steps of this rank's stage beside the whole model's on the whole batch. chunks: of an interleaved schedule; cls: of another one."""
    def stage_of(model):
        parts = partition(model, job.stages * max(chunks, 1))
        return nn.ModuleList(parts[job.stage::job.stages]) if chunks else parts[job.stage]

    job, generator = groups(), torch.Generator().manual_seed(3)
    torch.manual_seed(1)
    whole = kind().double()
    torch.manual_seed(1 + 100 * dist.get_rank() * (job.data_size > 1))  # replicas and stages that share get the first one's values
    part = stage_of(kind().double()) if job.data_size > 1 else None
    torch.manual_seed(1)
    if part is None or job.stage_ranks[0] == 0:
        part = stage_of(kind().double())
    plain = KINDS[optimizer](whole.parameters())
    schedule = schedules.InterleavedPipelineSchedule(microbatches, chunks, **more) if chunks else cls(microbatches, **more)
    schedule.dtype = torch.float64
    engine, *_ = castor.initialize(part, KINDS[optimizer](part.parameters()), criterion, schedule=schedule, clip_grad_norm=clipped, verbose=False)
    replica = dist.get_rank() // (job.stages * job.tensor_size)
    case = f"{kind.__name__}, {optimizer}, {microbatches} microbatches, {chunks} chunks, {cls.__name__}{', clipped' * bool(clipped)}"
    for step in range(3):
        data, label = batch(kind, BATCH * job.data_size, generator)
        own = slice(replica * BATCH, (replica + 1) * BATCH)
        plain.zero_grad()
        expected = whole(data)
        criterion(expected, label).backward()
        if clipped:
            nn.utils.clip_grad_norm_(whole.parameters(), clipped)
        engine.zero_grad()
        output, labels, loss = engine.execute_schedule(iter([(data[own], label[own])]))
        if job.stage == job.stages - 1:
            same(f"{case}: output {step}", output, expected[own].detach())
            same(f"{case}: label {step}", labels.double(), label[own].double())
            same(f"{case}: loss {step}", loss.double(), criterion(expected[own], label[own]).detach().view(1))
        elif [output, labels, loss] != [None] * 3:
            wrong.append(f"{case}: stage {job.stage} returned something")
        engine.step()
        for name, got, reference in zip(*_parameters(part, stage_of(whole))):
            same(f"{case}: gradient of {name} {step}", got.grad, reference.grad)
        stored.extend(store.entry_of(p) is not None and store.entry_of(p).shared for p in part.parameters() if p.nbytes >= PAGES)
        plain.step()
        for name, got, reference in zip(*_parameters(part, stage_of(whole))):
            same(f"{case}: {name} {step}", got.detach(), reference.detach())


def _parameters(part, whole):
    named = dict(part.named_parameters())
    return named.keys(), named.values(), whole.parameters()


def main():
    castor.launch_from_torch({"parallel": {"pipeline": stages, "tensor": {"size": tensor, "mode": "1d"}}, "NUM_MICRO_BATCHES": 3}, verbose=False)
    torch.set_default_dtype(torch.float32)
    job = groups()
    found("groups", [job.data_size, job.stages, job.tensor_size, job.stage, job.stage_ranks])
    for kind in (sequential, wide, tied, gpt, nested, images):
        train(kind, "sgd", 3)
        train(kind, "adamw", 12)
    for microbatches in (1, 2, 4, 6):
        train(sequential, "adamw", microbatches)
    train(tied, "sgd", 3, clipped=0.1)
    train(deep_tied, "sgd", 12, 2, clipped=0.1)
    if tensor > 1:
        train(sequential, "sgd", 3, scatter_gather_tensors=True)
    train(square, "sgd", 4, tensor_shape=(3, 8))
    train(square, "sgd", 4, tensor_shape=torch.Size([3, 8]), scatter_gather_tensors=True)

    for chunks in (1, 2, 3):
        train(deep, "sgd", 12, chunks)
    train(deep_tied, "sgd", 4, 2)
    train(deep, "adamw", job.stages, 2)
    train(narrow, "sgd", job.stages, 2, tensor_shape=(BATCH // job.stages, 8))

    found("zero bubble", pipeline_zero_bubble.run(train, (sequential, tied, nested, images, square)))
    found("split", split_backward.run())

    # ---- what is returned, and evaluation
    part = partition(sequential().double(), job.stages)[job.stage]
    engine, *_ = castor.initialize(part, torch.optim.SGD(part.parameters(), lr=0.1), criterion, verbose=False)
    found("made by initialize", [type(engine.schedule).__name__, engine.schedule.num_microbatches])
    data = [batch(sequential, BATCH, torch.Generator().manual_seed(3))]
    last = job.stage == job.stages - 1
    for name, more in (("forward only", {"forward_only": True}), ("no loss", {"return_loss": False}), ("no outputs", {"return_output_label": False})):
        engine.zero_grad()
        found(name, [[value is None for value in engine.execute_schedule(iter(data), **more)] == ([name == "no outputs"] * 2 + [name == "no loss"] if last else [True] * 3),
                     all(p.grad is None for p in part.parameters()) == (name == "forward only")])

    # ---- bad input
    schedule = schedules.PipelineSchedule(5)
    schedule._follow(engine)
    accumulating, *_ = castor.initialize(part, torch.optim.SGD(part.parameters(), lr=0.1), criterion, gradient_accumulation=2, verbose=False)
    found("accumulating", raised(ValueError, accumulating.execute_schedule, iter(data)))
    found("bad chunks", [raised(ValueError, schedules.InterleavedPipelineSchedule, 4, 0),
                         raised(ValueError, schedules.InterleavedPipelineSchedule(4, 2).forward_backward_step, engine, iter(data))])
    found("bad", [raised(ValueError, schedules.PipelineSchedule, 0), raised(ValueError, schedule.load_batch, iter(data)),
                  raised(TypeError, partition, nn.Linear(2, 2), 2), raised(ValueError, partition, nn.Sequential(nn.Linear(2, 2)), 2),
                  raised(ValueError, castor.launch_from_torch, {"parallel": {"pipeline": 3 * dist.get_world_size()}}, verbose=False),
                  raised(ValueError, castor.launch_from_torch, {"parallel": {"tensor": {"size": 1, "mode": "2d"}}}, verbose=False)])
    found("balanced", [[len(stage) for stage in partition([nn.Linear(1, n, bias=False) for n in (8, 1, 1, 1, 1, 4)], 2)],
                       [len(stage) for stage in partition([nn.Linear(1, n, bias=False) for n in (8, 1, 1, 1, 1, 4)], 2, "layers")]])
    found("models", pipeline_models.run() if (job.stages, job.tensor_size) == (2, 2) else None)
    found("differing", pipeline_differing.run() if job.stages * job.tensor_size == 4 else None)
    found("wrong", wrong[:4])
    found("compared", compared)
    found("stored", sorted(set(stored)))
    end()


def deep():
    return nn.Sequential(*(layer for _ in range(12) for layer in (nn.Linear(8, 8), nn.Tanh())))


def deep_tied():
    embedding = nn.Embedding(11, 8)
    return nn.Sequential(embedding, *(layer for _ in range(10) for layer in (nn.Linear(8, 8), nn.Tanh())), Decoder(embedding))


def narrow():
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(12)))


def square():
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))


main()
