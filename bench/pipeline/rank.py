"""A rank of the pipeline bench: rank.py OUTPUT ROUNDS STEPS SAMPLES. The same stages of one GPT train by Castor's schedules and by those of
torch.distributed.pipelining, which take turns step by step in the same processes; so does rank 0 alone with the whole model. Before, both
train a few steps from the same values: losses and all gradients must be equal bit for bit. Rank 0 writes the seconds of each step."""

import copy
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

import castor
from castor.engine.schedule import InterleavedPipelineSchedule, PipelineSchedule
from castor.pipeline import partition

WIDTH, HEADS, BLOCKS, TOKENS, VOCABULARY, CHUNKS, CHECKED = 256, 4, 8, 64, 512, 2, 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
        x = x + self.out(attended)
        return x + self.mlp(self.second(x))


def criterion(output, label):
    return F.cross_entropy(output.flatten(0, -2), label.flatten())


def chain():
    return [nn.Embedding(VOCABULARY, WIDTH), *(Block() for _ in range(BLOCKS)), nn.Linear(WIDTH, VOCABULARY)]


class Castor:
    def __init__(self, parts, microbatches):
        self.model = nn.ModuleList(parts) if len(parts) > 1 else parts[0]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        schedule = InterleavedPipelineSchedule(microbatches, len(parts)) if len(parts) > 1 else PipelineSchedule(microbatches)
        self.engine, *_ = castor.initialize(self.model, self.optimizer, criterion, schedule=schedule, verbose=False)

    def step(self, data, label):
        return self.engine.execute_schedule(iter([(data, label)]))[2]


class Torch:
    def __init__(self, parts, microbatches):
        self.model = nn.ModuleList(parts)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.first, self.last = rank == 0, rank == stages - 1
        made = [PipelineStage(part, chunk * stages + rank, len(parts) * stages, torch.device("cpu")) for chunk, part in enumerate(parts)]
        self.schedule = ScheduleInterleaved1F1B(made, microbatches, criterion) if len(parts) > 1 else Schedule1F1B(made[0], microbatches, criterion)

    def step(self, data, label):
        losses = []
        self.schedule.step(*([data] if self.first else []), **({"target": label, "losses": losses} if self.last else {}))
        return torch.stack(losses).sum().view(1) / len(losses) if self.last else None


class Whole:
    """On rank 0, while the others wait: microbatch after microbatch, as a stage computes."""

    def __init__(self, parts, microbatches):
        self.model, self.microbatches = nn.Sequential(*parts), microbatches
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, data, label):
        if rank == 0:
            for x, y in zip(data.chunk(self.microbatches), label.chunk(self.microbatches)):
                (criterion(self.model(x), y) / self.microbatches).backward()


def batch(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, VOCABULARY, (samples, TOKENS), generator=generator) for _ in range(2))


def check(ours, theirs, samples):
    """A few steps with SGD from the same values. AssertionError: they differ."""
    for step in range(CHECKED):
        data = batch(samples, step)
        for one in (ours, theirs):
            one.optimizer.zero_grad()
        loss, other = ours.step(*data), theirs.step(*data)
        assert (loss is None) == (other is None) and (loss is None or torch.equal(loss, other)), f"step {step}: losses {loss} and {other}"
        for number, (p, q) in enumerate(zip(ours.model.parameters(), theirs.model.parameters(), strict=True)):
            assert torch.equal(p.grad, q.grad), f"step {step}: gradients {number} differ"
        ours.optimizer.step(), theirs.optimizer.step()
    return CHECKED


def timed(one, data):
    """Seconds of a step without the optimizer's, on the slowest rank."""
    one.optimizer.zero_grad()
    dist.barrier()
    begin = time.perf_counter()
    one.step(*data)
    seconds = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.item()


def measure(samples, microbatches, chunks, rounds, steps):
    torch.manual_seed(1)
    parts = partition(chain(), stages * chunks)
    own = parts[rank::stages]
    systems = {"castor": Castor(copy.deepcopy(own), microbatches), "torch": Torch(copy.deepcopy(own), microbatches)}
    checked = check(*systems.values(), samples)
    systems["whole"] = Whole(parts, microbatches)
    data, times = batch(samples, 0), {name: [] for name in systems}
    for number in range(-1, rounds):  # one to warm up
        for name in list(systems)[:: 1 if number % 2 else -1]:
            seconds = [timed(systems[name], data) for _ in range(steps)]
            if number >= 0:
                times[name].append(seconds)
    return {"microbatches": microbatches, "chunks": chunks, "equal_steps": checked, "seconds": times}


output, rounds, steps, samples = sys.argv[1], *map(int, sys.argv[2:5])
torch.set_num_threads(1)
stages = int(os.environ["WORLD_SIZE"])
castor.launch_from_torch({"parallel": {"pipeline": stages}}, verbose=False)
rank = dist.get_rank()
cases = [measure(samples, microbatches, chunks, rounds, steps) for chunks in (1, CHUNKS) for microbatches in (4, 8)]
if rank == 0:
    model = {"width": WIDTH, "blocks": BLOCKS, "tokens": TOKENS, "samples": samples}
    with open(output, "w", encoding="ascii") as file:
        json.dump({"stages": stages, "model": model, "cases": cases}, file)
dist.destroy_process_group()
