"""A script started as one process that makes a process group of its own after all."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

import record
from model import Classifier, batch


def train(log, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if log is not None:
            log.step(loss, model, optimizer)


@record.case
def group_of_one(log):
    dist.init_process_group("gloo", init_method="file://" + os.path.abspath(log.path("meeting")), rank=0, world_size=1)
    train(log, torch.nn.parallel.DistributedDataParallel(Classifier()))
    dist.destroy_process_group()


def spawned_rank(rank, meeting):
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=2)
    train(None, torch.nn.parallel.DistributedDataParallel(Classifier()))
    dist.destroy_process_group()


@record.case
def spawned(log):
    """Processes of the script's own, which train; this one waits for them."""
    mp.spawn(spawned_rank, (os.path.abspath(log.path("meeting")),), nprocs=2)
    log.note("done", True)


def hogwild(log, context):
    """Processes that train the same model, in memory that they share, and a script that goes on when they have ended."""
    model = Classifier()
    model.share_memory()
    workers = [mp.get_context(context).Process(target=train, args=(None, model)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    log.note("done", True)


@record.case
def hogwild_forked(log):
    hogwild(log, "fork")


@record.case
def hogwild_spawned(log):
    hogwild(log, "spawn")


if __name__ == "__main__":
    record.main()
