"""What bench/hybrid trains: train.py alone|ddp|layers|stages OUTPUT STEPS MICROBATCHES. `alone` is a plain script of one process; `ddp` one of ranks with
DistributedDataParallel, each with its rows of the batch; `layers` and `stages` are the ranks of torchrun, whose division is written by hand with
torch.distributed.tensor.parallel and torch.distributed.pipelining. Rank 0, of stages the last one, writes the losses of the whole batch and the seconds of each step."""

import json
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, BLOCKS, TOKENS, VOCABULARY, ROWS = 512, 8, 8, 128, 1024, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x1 = self.first(x)
        q, k, v = (one(x1).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for one in (self.query, self.key, self.value))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch(step):
    generator = torch.Generator().manual_seed(step)
    found = torch.randint(VOCABULARY, (ROWS, TOKENS + 1), generator=generator)
    return found[:, :-1].contiguous(), found[:, 1:].contiguous()


def whole(model, tokens, targets):
    loss = loss_of(model(tokens), targets)
    loss.backward()
    return loss.item()


class WithLoss(nn.Module):
    """Whose call returns the loss."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, targets):
        return loss_of(self.model(tokens), targets)


def in_ranks(model):
    def step(model, tokens, targets):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        loss = model(tokens.chunk(ranks)[rank], targets.chunk(ranks)[rank])
        loss.backward()
        mean = loss.detach() / ranks
        dist.all_reduce(mean)
        return mean.item()

    return nn.parallel.DistributedDataParallel(WithLoss(model)), step


def in_layers(model):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {**{f"blocks.*.{name}": ColwiseParallel() for name in ("query", "key", "value", "up")}, **{f"blocks.*.{name}": RowwiseParallel() for name in ("out", "down")}}
    parallelize_module(model, mesh, plan)
    return model, whole


class Part(nn.Module):
    """A stage's blocks, and what comes before or behind them."""

    def __init__(self, model, stage, stages):
        super().__init__()
        each = BLOCKS // stages
        self.blocks = model.blocks[stage * each:(stage + 1) * each]
        self.before, self.head = (nn.ModuleList((model.tokens, model.positions)) if stage == 0 else None), model.head if stage == stages - 1 else None

    def forward(self, x):
        if self.before is not None:
            x = self.before[0](x) + self.before[1].weight[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(x)


def in_stages(model, microbatches):
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, ranks = dist.get_rank(), dist.get_world_size()
    part = Part(model, rank, ranks)
    schedule = ScheduleGPipe(PipelineStage(part, rank, ranks, torch.device("cpu")), microbatches, loss_of)

    def step(part, tokens, targets):
        losses = []
        schedule.step(*([tokens] if rank == 0 else []), **({"target": targets, "losses": losses} if rank == ranks - 1 else {}))
        return sum(loss.item() for loss in losses) / max(len(losses), 1)

    return part, step


def main():
    way, output, steps, microbatches = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, step_of, writes = Model(), whole, True
    if way != "alone":
        dist.init_process_group("gloo")
        model, step_of = in_stages(model, microbatches) if way == "stages" else {"layers": in_layers, "ddp": in_ranks}[way](model)
        writes = dist.get_rank() == (dist.get_world_size() - 1 if way == "stages" else 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, seconds, used = [], [], []
    for step in range(steps):
        begin, used_before = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        losses.append(step_of(model, *batch(step)))
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
        used.append(time.process_time() - used_before)
    if writes:
        with open(output, "w", encoding="ascii") as file:
            json.dump({"losses": losses, "seconds": seconds, "processor_seconds": used}, file)
    if way != "alone":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
