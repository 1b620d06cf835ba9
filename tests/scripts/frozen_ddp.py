"""Parameters that do not take part: frozen, thawed later, unused, in no optimizer."""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import record
from model import Classifier, batch
from steps import train, train_step


class Branches(nn.Module):
    """The first branch is always used, the second where the caller says so, the third never."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = Classifier(), Classifier(300), Classifier(100)

    def forward(self, x, second):
        out = self.first(x)
        return out + self.second(x) if second else out


@record.case
def frozen_body(log):
    network = Classifier()
    for p in network.parameters():
        p.requires_grad_(False)
    network.head.requires_grad_(True)
    network.deep.bias.requires_grad_(True)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def frozen_but_in_the_optimizer(log):
    network = Classifier()
    network.wide.requires_grad_(False)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train(log, model, optimizer, range(3))


@record.case
def thawed_with_a_new_wrapper(log):
    """Fine-tuning in two phases: the head, then everything, wrapped again."""
    network = Classifier()
    for name, p in network.named_parameters():
        p.requires_grad_(name.startswith("head"))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    train(log, model, optimizer, range(2))
    for p in network.parameters():
        p.requires_grad_(True)
    model = DistributedDataParallel(network)
    optimizer.add_param_group({"params": [p for name, p in network.named_parameters() if not name.startswith("head")], "lr": 1e-4})
    train(log, model, optimizer, range(2, 5))


@record.case
def thawed_under_the_same_wrapper(log):
    """A parameter that the wrapper does not know gets local gradients only, as in plain PyTorch."""
    network = Classifier()
    network.inner.requires_grad_(False)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        if step == 2:
            network.inner.requires_grad_(True)
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if step == 2:
            for p in network.inner.parameters():
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        log.gradients(model)
        if step < 3:
            optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def frozen_while_wrapped(log):
    """requires_grad is switched off after the wrapper, which is told to look for unused parameters."""
    model = DistributedDataParallel(Classifier(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(4):
        model.module.inner.requires_grad_(step % 2 == 0)
        loss = train_step(model, optimizer, step)
        log.step(loss, model, optimizer)


def unused(log, used, set_to_none=True, no_sync_at=None, optimizer_class=torch.optim.AdamW, lr=1e-3):
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    optimizer = optimizer_class(model.parameters(), lr=lr)
    for step in range(5):
        optimizer.zero_grad(set_to_none=set_to_none)
        if step == no_sync_at:
            with model.no_sync():
                x, y = batch(step + 50)
                F.cross_entropy(model(x, True), y).backward()
        x, y = batch(step)
        loss = F.cross_entropy(model(x, used(step)), y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def unused_on_all_ranks_in_turn(log):
    unused(log, lambda step: step % 2 == 0)


@record.case
def unused_on_some_ranks(log):
    """A branch that only some ranks use, and not always the same."""
    unused(log, lambda step: (step + dist.get_rank()) % 2 == 0)


@record.case
def unused_on_one_rank_zeroed_in_place(log):
    unused(log, lambda step: dist.get_rank() != 0 and step != 3, set_to_none=False)


@record.case
def used_without_synchronization_only(log):
    """Used by micro-batches under no_sync, not by the synchronized one."""
    unused(log, lambda step: False, no_sync_at=2)


@record.case
def unused_and_momentum(log):
    """A parameter whose gradient is None keeps its momentum and its value."""
    unused(log, lambda step: step < 2, optimizer_class=torch.optim.SGD, lr=0.1)


@record.case
def unused_is_an_error(log):
    """Without find_unused_parameters plain PyTorch stops at the next forward."""
    model = DistributedDataParallel(Branches())
    errors = []
    for step in range(2):
        x, y = batch(step)
        try:
            F.cross_entropy(model(x, True), y).backward()
        except RuntimeError as error:
            errors.append(str(error).split(".")[0])
            break
    log.note("error", errors)


@record.case
def in_no_optimizer(log):
    """Half of the network in an optimizer, a group added later, one matrix updated by hand."""
    model = DistributedDataParallel(Classifier())
    network = model.module
    optimizer = torch.optim.AdamW(network.inner.parameters(), lr=1e-3)
    for step in range(4):
        if step == 2:
            optimizer.add_param_group({"params": list(network.deep.parameters()), "lr": 2e-3})
        model.zero_grad()
        x, y = batch(step)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            network.head.weight.sub_(network.head.weight.grad, alpha=0.1)
        log.note("stepped", list(optimizer.state_dict()["state"]))
        log.step(loss, model, optimizer)


@record.case
def ignored_by_the_wrapper(log):
    """Parameters that DDP is told to leave alone stay each rank's own."""
    network = Classifier()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(network, ["inner.weight", "inner.bias"])
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(log, model, optimizer, range(3))


@record.case
def low_rank_adapter(log):
    """A frozen matrix and two small trained ones, merged for the evaluation and taken out again."""

    class Adapter(nn.Module):
        def __init__(self, inner, rank=4):
            super().__init__()
            self.inner = inner.requires_grad_(False)
            self.down = nn.Parameter(torch.randn(rank, inner.in_features) * 0.01)
            self.up = nn.Parameter(torch.zeros(inner.out_features, rank))

        def forward(self, x):
            return self.inner(x) + x @ self.down.t() @ self.up.t()

    network = Classifier().requires_grad_(False)
    network.deep, network.wide = Adapter(network.deep), Adapter(network.wide)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], lr=1e-2)
    for step in range(4):
        loss = train_step(model, optimizer, step)
        with torch.no_grad():
            change = network.deep.up @ network.deep.down
            network.deep.inner.weight += change
            log.parameters(model, "merged parameters")
            network.deep.inner.weight -= change
        log.step(loss, model, optimizer)


if __name__ == "__main__":
    record.main()
