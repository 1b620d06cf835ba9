"""Synchronization that scripts control: accumulation, buffers, local steps, communication hooks."""

import contextlib

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import record
from model import CLASSES, FEATURES, Classifier, batch
from steps import train, train_step


def with_batch_norm():
    return nn.Sequential(nn.Linear(FEATURES, 600, bias=False), nn.BatchNorm1d(600), nn.ReLU(), nn.Linear(600, CLASSES))


def micro_steps(log, synchronized, count=3, steps=3, network=Classifier, **settings):
    """`count` micro-batches a step; `synchronized(model, last)` gives the context of each."""
    model = DistributedDataParallel(network(), **settings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        optimizer.zero_grad()
        for micro in range(count):
            with synchronized(model, micro == count - 1):
                x, y = batch(step * count + micro)
                loss = F.cross_entropy(model(x), y) / count
                loss.backward()
            log.gradients(model, "after a micro-step")
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        log.step(loss, model, optimizer)


def no_sync_but_last(model, last):
    return contextlib.nullcontext() if last else model.no_sync()


def two_wrappers(log, **settings):
    """Two wrappers share a module, and one loss needs both."""
    body = nn.Linear(FEATURES, 400)
    first, second = (DistributedDataParallel(nn.Sequential(body, nn.Tanh(), nn.Linear(400, CLASSES)), **settings) for _ in range(2))
    optimizer = torch.optim.SGD({p: 0 for p in [*first.parameters(), *second.parameters()]}, lr=0.1, momentum=0.9)
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(first(x), y) + second(x).square().mean()
        loss.backward()
        optimizer.step()
        log.step(loss, first, optimizer)
    log.parameters(second)


@record.case
def shared_by_two_wrappers(log):
    two_wrappers(log)


@record.case
def shared_by_two_static_wrappers(log):
    two_wrappers(log, static_graph=True)


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(FEATURES, 300), nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.one(x), self.other(x)


@record.case
def backward_in_parts(log):
    """One forward, and a backward for each of its outputs: together they make every parameter's gradient."""
    model = DistributedDataParallel(Towers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        one, other = model(x)
        one.square().mean().backward()
        loss = F.cross_entropy(other, y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def no_sync(log):
    micro_steps(log, no_sync_but_last)


@record.case
def require_backward_grad_sync(log):
    def switched(model, last):
        model.require_backward_grad_sync = last
        return contextlib.nullcontext()

    micro_steps(log, switched)


@record.case
def synchronized_every_time(log):
    micro_steps(log, lambda model, last: contextlib.nullcontext())


@record.case
def no_sync_around_the_forward_only(log):
    """What counts is the mode at the forward pass."""
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        with model.no_sync():
            x, y = batch(step)
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        log.gradients(model, "local gradients")
        x, y = batch(step + 50)
        loss = F.cross_entropy(model(x), y)
        with model.no_sync():
            loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def no_sync_with_unused(log):
    micro_steps(log, no_sync_but_last, find_unused_parameters=True)


@record.case
def accumulation_of_different_length(log):
    """The last step has fewer micro-batches."""
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, count in enumerate((3, 3, 1)):
        optimizer.zero_grad()
        for micro in range(count):
            with no_sync_but_last(model, micro == count - 1):
                x, y = batch(10 * step + micro)
                loss = F.cross_entropy(model(x), y) / count
                loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def local_steps(log):
    """Local SGD: steps without synchronization, then an average by hand."""
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(6):
        optimizer.zero_grad()
        with model.no_sync():
            x, y = batch(step)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)
        if step % 3 == 2:
            with torch.no_grad():
                for p in model.parameters():
                    dist.all_reduce(p)
                    p.div_(dist.get_world_size())
            log.parameters(model, "averaged parameters")


@record.case
def local_then_synchronized(log):
    """After local steps the ranks differ; synchronized steps go on from what each rank has."""
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        with model.no_sync() if step < 2 else contextlib.nullcontext():
            x, y = batch(step)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def batch_norm(log):
    """Running statistics: rank 0's are broadcast at each forward pass."""
    micro_steps(log, lambda model, last: contextlib.nullcontext(), count=1, steps=4, network=with_batch_norm)


@record.case
def batch_norm_not_broadcast(log):
    micro_steps(log, no_sync_but_last, network=with_batch_norm, broadcast_buffers=False)


@record.case
def batch_norm_with_accumulation(log):
    model = DistributedDataParallel(with_batch_norm())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        model.require_backward_grad_sync = step % 2 == 1
        x, y = batch(step)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
        log.step(loss, model, optimizer)
    model.eval()
    with torch.no_grad():
        log.note("validation", model(batch(77)[0]))


@record.case
def communication_hook(log):
    """Gradients compressed by a hook of PyTorch's."""
    model = DistributedDataParallel(Classifier())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(log, model, optimizer, range(3))


@record.case
def communication_hook_of_the_script(log):
    model = DistributedDataParallel(Classifier())
    seen = []

    def hook(state, bucket):
        state.append(bucket.buffer().numel())
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda f: f.value()[0] / (2 * dist.get_world_size()))

    model.register_comm_hook(seen, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(log, model, optimizer, range(3))
    log.note("elements", sum(seen))


@record.case
def join(log):
    """Ranks with unequal numbers of batches."""
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model]):
        for step in range(2 + dist.get_rank()):
            loss = train_step(model, optimizer, step)
            log.step(loss, model, optimizer)
    log.parameters(model)


@record.case
def static_graph(log):
    model = DistributedDataParallel(Classifier(), static_graph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(log, model, optimizer, range(4))


@record.case
def logging_data(log):
    """What libraries ask the wrapper for, after it has trained."""
    model = DistributedDataParallel(Classifier(), broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(log, model, optimizer, range(2))
    data = model._get_ddp_logging_data()
    told = ("module_name", "rank", "world_size", "broadcast_buffers", "can_set_static_graph")
    log.note("told", {name: data.get(name) for name in told})


@record.case
def sparse_gradients(log):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Embedding(500, 16, sparse=True), nn.Flatten(), nn.Linear(64, CLASSES))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        tokens = torch.randint(0, 500, (8, 4), generator=generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens), batch(step)[1])
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def sub_group(log):
    """A wrapper over a group that the script made, of all ranks in another order of creation."""
    group = dist.new_group(list(range(dist.get_world_size())))
    model = DistributedDataParallel(Classifier(), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(log, model, optimizer, range(3))


@record.case
def pairs(log):
    """Models of their own on every two ranks: hyper-parameters tried side by side."""
    world, rank = dist.get_world_size(), dist.get_rank()
    groups = [dist.new_group(list(range(first, min(first + 2, world)))) for first in range(0, world, 2)]
    torch.manual_seed(60 + rank // 2)
    model = DistributedDataParallel(Classifier(), process_group=groups[rank // 2])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3 * (1 + rank // 2))
    for step in range(3 + rank // 2):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        log.step(loss, model, optimizer)
    dist.barrier()


@record.case
def group_of_one(log):
    """Each rank wraps a model in a group of its own: nothing is shared, the ranks learn apart."""
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    torch.manual_seed(50 + dist.get_rank())
    model = DistributedDataParallel(Classifier(), process_group=groups[dist.get_rank()])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(log, model, optimizer, range(3))


@record.case
def sharded_by_pytorch(log):
    """FSDP: PyTorch itself keeps a part of each parameter on a rank."""
    model = Classifier()
    fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        log.note("loss", train_step(model, optimizer, step).item())


@record.case
def wrapped_but_not_called(log):
    """The raw module is called: no synchronization, each rank has gradients of its own."""
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = train_step(model.module, optimizer, step)
        log.step(loss, model, optimizer)


@record.case
def averaged_by_hand(log):
    """No wrapper at all: the script broadcasts the weights and averages the gradients itself."""
    model = Classifier()
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def backward_twice_after_one_forward(log):
    """A parameter gets two gradients after one forward: an error, in plain PyTorch too."""
    model = DistributedDataParallel(Towers())
    x, y = batch(0)
    one, other = model(x)
    one.square().mean().backward()
    try:
        (F.cross_entropy(other, y) + model.module.one(x).mean()).backward()
        log.note("raised", 0)
    except RuntimeError as error:
        log.note("raised", float("mark a variable ready only once" in str(error)))


if __name__ == "__main__":
    record.main()
