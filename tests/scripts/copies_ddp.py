"""Copies of what is being trained: deepcopy, pickle, saved files of every kind, forked and spawned processes."""

import copy
import io
import os
import pickle

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import record
from model import CLASSES, FEATURES, Classifier, batch
from steps import train_step


def start(optimizer_class=torch.optim.AdamW, lr=1e-3, **settings):
    model = DistributedDataParallel(Classifier())
    return model, optimizer_class(model.parameters(), lr=lr, **settings)


@record.case
def deepcopy_of_the_module(log):
    """A copy stays as it was while the original goes on."""
    model, optimizer = start()
    train_step(model, optimizer, 0)
    kept = copy.deepcopy(model.module)
    for step in range(1, 3):
        loss = train_step(model, optimizer, step)
        log.step(loss, model, optimizer)
    log.step(None, kept)


@record.case
def deepcopy_of_the_optimizer(log):
    model, optimizer = start()
    train_step(model, optimizer, 0)
    kept = copy.deepcopy(optimizer)
    state = copy.deepcopy(optimizer.state_dict())
    loss = train_step(model, optimizer, 1)
    log.step(loss, model, optimizer)
    log.step(None, None, kept)
    log.note("optimizer", state)


@record.case
def deepcopy_of_the_wrapper(log):
    """The copied wrapper trains with an optimizer of its own, in turns with the first."""
    model, optimizer = start()
    for step in range(2):
        train_step(model, optimizer, step)
    second = copy.deepcopy(model)
    log.note("class", type(second).__name__)
    other = torch.optim.AdamW(second.parameters(), lr=1e-2)
    for step in range(2, 5):
        loss = train_step(second, other, step)
        log.step(loss, second, other)
        loss = train_step(model, optimizer, step)
        log.step(loss, model, optimizer)


@record.case
def deepcopy_before_the_first_step(log):
    """A frozen reference network, as in preference learning."""
    network = Classifier()
    reference = copy.deepcopy(network).requires_grad_(False)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) + F.mse_loss(model(x), reference(x))
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)
    log.parameters(reference)


@record.case
def target_network(log):
    """Reinforcement learning: a target that follows slowly, and is set to the model now and then."""
    model, optimizer = start()
    target = copy.deepcopy(model.module).requires_grad_(False)
    for step in range(4):
        x, _ = batch(step)
        with torch.no_grad():
            wanted = target(x).max(1).values
        optimizer.zero_grad()
        loss = F.smooth_l1_loss(model(x).max(1).values, 1 + 0.9 * wanted)
        loss.backward()
        optimizer.step()
        for t, p in zip(target.parameters(), model.parameters()):
            t.data.copy_(0.9 * t.data + 0.1 * p.data)
        if step == 2:
            target.load_state_dict(model.module.state_dict())
        log.step(loss, model, optimizer)
        log.parameters(target, "target parameters")


def size_of(thing):
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.getbuffer().nbytes


@record.case
def sizes_of_what_is_saved(log):
    """A saved parameter takes its own bytes and no more."""
    model, optimizer = start()
    for step in range(2):
        train_step(model, optimizer, step)
    network = model.module
    things = {
        "one parameter": network.head.weight,
        "one small parameter": network.inner.bias,
        "its data": network.head.weight.data,
        "a detached slice": network.deep.weight.detach()[:2],
        "model state": network.state_dict(),
        "wrapped model state": model.state_dict(),
        "optimizer state": optimizer.state_dict(),
        "gradients": [p.grad for p in network.parameters()],
        "a gradient": network.head.weight.grad,
        "a moment": optimizer.state[network.head.weight]["exp_avg"],
        "the module": network,
        "the wrapper": model,
    }
    for name, thing in things.items():
        log.note(name, size_of(thing))
    log.note("pickled", len(pickle.dumps(network)))
    log.note("storage", [p.untyped_storage().nbytes() for p in network.parameters()])
    log.note("offsets", [p.storage_offset() for p in network.parameters()])


@record.case
def files_of_every_kind(log):
    model, optimizer = start()
    for step in range(2):
        loss = train_step(model, optimizer, step)
    network = model.module
    if dist.get_rank() == 0:
        torch.save(network.state_dict(), log.path("model.pt"))
        torch.save(network, log.path("module.pt"))
        torch.save(network.deep.weight, log.path("parameter.pt"))
        torch.save({n: p.grad for n, p in network.named_parameters()}, log.path("gradients.pt"))
        torch.save(optimizer.state_dict(), log.path("optimizer.pt"))
        torch.save(network.state_dict(), log.path("legacy.pt"), _use_new_zipfile_serialization=False)
        network.head.weight.detach().numpy().tofile(log.path("head.raw"))
        with open(log.path("deep.raw"), "wb", buffering=0) as file:
            file.write(network.deep.weight.detach().numpy().data)
    log.step(loss, model, optimizer)


@record.case
def pickled_wrapper(log):
    """A wrapper that went through pickle trains on."""
    model, optimizer = start()
    train_step(model, optimizer, 0)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    again = torch.load(buffer, weights_only=False)
    other = torch.optim.SGD(again.parameters(), lr=0.1)
    for step in range(1, 3):
        loss = train_step(again, other, step)
        log.step(loss, again, other)
    log.step(None, model, optimizer)


@record.case
def forked_child(log):
    """A child sees the weights as they were at the fork, however the parent goes on, and may change its own."""
    model, optimizer = start(torch.optim.SGD, 0.1, momentum=0.9)
    loss = train_step(model, optimizer, 0)
    at_fork = [p.detach().double().sum().item() for p in model.parameters()]
    states = [optimizer.state[p]["momentum_buffer"].double().sum().item() for p in model.parameters()]
    go, said = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.read(go[0], 1)
            seen = [p.detach().double().sum().item() for p in model.parameters()]
            kept = [optimizer.state[p]["momentum_buffer"].double().sum().item() for p in model.parameters()]
            with torch.no_grad():
                for p in model.parameters():
                    p.zero_()
            os.write(said[1], b"same" if (seen, kept) == (at_fork, states) else b"different")
        finally:
            os._exit(0)
    for step in range(1, 4):
        loss = train_step(model, optimizer, step)
        log.step(loss, model, optimizer)
    os.write(go[1], b"x")
    os.close(said[1])
    log.note("child", os.read(said[0], 20).decode())
    os.waitpid(child, 0)
    loss = train_step(model, optimizer, 4)
    log.step(loss, model, optimizer)


class Samples(Dataset):
    def __init__(self, count, model=None):
        self.count, self.model = count, model

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        x, y = torch.randn(FEATURES, generator=torch.Generator().manual_seed(index)), index % CLASSES
        if self.model is not None:
            with torch.no_grad():
                x = x + self.model(x[None]).mean()
        return x, y


def with_workers(log, context, model_in_worker=False, workers=2):
    model, optimizer = start()
    train_step(model, optimizer, 0)
    data = Samples(16, model.module if model_in_worker else None)
    sampler = torch.utils.data.DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, 4, sampler=sampler, num_workers=workers, multiprocessing_context=context)
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def forked_workers(log):
    with_workers(log, "fork")


@record.case
def forked_workers_that_run_the_model(log):
    """Workers hold the weights as they were when the epoch began."""
    with_workers(log, "fork", model_in_worker=True)


@record.case
def spawned_workers(log):
    with_workers(log, "spawn", workers=1)  # each of which imports PyTorch


def score(weights, queue):
    queue.put(sum(w.double().sum().item() for w in weights))


@record.case
def tensors_sent_to_a_process(log):
    """Clones of the weights go to a spawned evaluator."""
    model, optimizer = start()
    loss = train_step(model, optimizer, 0)
    if dist.get_rank() == 0:
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        process = context.Process(target=score, args=([p.detach().clone() for p in model.parameters()], queue))
        process.start()
        log.note("score", queue.get(timeout=60))
        process.join()
    dist.barrier()
    loss = train_step(model, optimizer, 1)
    log.step(loss, model, optimizer)


@record.case
def shared_memory(log):
    """share_memory_() after training: the module's storages move, and other processes may see them."""
    model, optimizer = start(torch.optim.SGD, 0.1)
    train_step(model, optimizer, 0)
    model.module.share_memory()
    for step in range(1, 3):
        loss = train_step(model, optimizer, step)
        log.note("shared", all(p.is_shared() for p in model.parameters()))
        log.step(loss, model, optimizer)


@record.case
def numpy_views(log):
    """An array made from a parameter follows it."""
    model, optimizer = start(torch.optim.SGD, 0.1)
    array = model.module.deep.weight.detach().numpy()
    for step in range(3):
        loss = train_step(model, optimizer, step)
        log.note("array", torch.from_numpy(array))
        log.step(loss, model, optimizer)
    array[:4] = 0
    loss = train_step(model, optimizer, 3)
    log.step(loss, model, optimizer)


if __name__ == "__main__":
    record.main()
