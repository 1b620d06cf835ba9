"""How scripts use an optimizer: hooks, edited states, groups added, steps repeated, inside backward, or none at all."""

import copy

import torch
import torch.nn.functional as F
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import record
from model import Classifier, batch
from steps import train, train_step


@record.case
def step_hooks(log):
    """Hooks before and after the step see gradients and weights of all parameters."""
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer.register_step_pre_hook(lambda o, args, kwargs: log.gradients(model, "before the step"))
    optimizer.register_step_post_hook(lambda o, args, kwargs: log.gradients(model, "after the step"))
    optimizer.register_step_post_hook(lambda o, args, kwargs: log.parameters(model, "parameters after the step"))
    train(log, model, optimizer, range(3))


@record.case
def state_edited(log):
    """All ranks reset one moment and replace the other."""
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(5):
        loss = train_step(model, optimizer, step)
        if step == 1:
            for state in optimizer.state.values():
                state["exp_avg"].zero_()
        if step == 2:
            for p in model.parameters():
                optimizer.state[p]["exp_avg_sq"] = optimizer.state[p]["exp_avg_sq"] * 2
        if step == 3:
            optimizer.state[model.module.deep.weight]["exp_avg"][:10].fill_(0.01)
        log.step(loss, model, optimizer)


@record.case
def state_cleared(log):
    """The optimizer starts anew in mid-run."""
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(4):
        loss = train_step(model, optimizer, step)
        if step == 1:
            optimizer.state.clear()
        if step == 2:
            del optimizer.state[model.module.head.weight]
        log.step(loss, model, optimizer)


@record.case
def group_added_later(log):
    model = DistributedDataParallel(Classifier())
    named = dict(model.module.named_parameters())
    optimizer = torch.optim.AdamW([p for name, p in named.items() if name.startswith("head")], lr=1e-3)
    for step in range(4):
        if step == 1:
            optimizer.add_param_group({"params": [p for name, p in named.items() if name.startswith("deep")], "lr": 1e-4})
        if step == 2:
            rest = [p for name, p in named.items() if not name.startswith(("head", "deep"))]
            optimizer.add_param_group({"params": rest, "weight_decay": 0.0})
        x, y = batch(step)
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def replaced_in_mid_run(log):
    """Adam first, then SGD over the same parameters."""
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(4):
        if step == 2:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        loss = train_step(model, optimizer, step)
        log.step(loss, model, optimizer)


@record.case
def one_optimizer_per_parameter(log):
    model = DistributedDataParallel(Classifier())
    optimizers = [torch.optim.AdamW([p], lr=1e-3) for p in model.parameters()]
    for step in range(3):
        x, y = batch(step)
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        log.step(loss, model)
        log.note("optimizer", [optimizer.state_dict() for optimizer in optimizers])


@record.case
def stepped_twice(log):
    """Two steps with the same gradients."""
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(3):
        loss = train_step(model, optimizer, step)
        log.gradients(model, "between")
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def stepped_without_gradients(log):
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer.step()
    log.step(None, model, optimizer)
    x, y = batch(0)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.step()
    log.step(loss, model, optimizer)


@record.case
def inside_backward(log):
    """The optimizer of each parameter steps as soon as its gradient is there, and drops it."""
    network = Classifier()
    model = DistributedDataParallel(network)
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in network.parameters()}

    def step_now(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for step in range(2):
        x, y = batch(step)
        if step == 0:
            hooks = [p.register_post_accumulate_grad_hook(step_now) for p in network.parameters()]
        loss = F.cross_entropy(model.module(x), y)
        loss.backward()
        log.step(loss, model)
    for hook in hooks:
        hook.remove()


@record.case
def zero_redundancy_of_pytorch(log):
    """ZeroRedundancyOptimizer steps its own share and broadcasts."""
    model = DistributedDataParallel(Classifier())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    for step in range(3):
        loss = train_step(model, optimizer, step)
        log.step(loss, model)


@record.case
def plain_function(log):
    """No optimizer at all."""
    model = DistributedDataParallel(Classifier())
    velocity = [torch.zeros_like(p) for p in model.parameters()]
    for step in range(3):
        x, y = batch(step)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p, v in zip(model.parameters(), velocity):
                v.mul_(0.9).add_(p.grad)
                p -= 0.1 * v
                p.grad = None
        log.step(loss, model)


@record.case
def copied_settings(log):
    """A second optimizer gets the first one's settings by load_state_dict before any step."""
    model = DistributedDataParallel(Classifier())
    first = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.8, 0.99))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    optimizer.load_state_dict(copy.deepcopy(first.state_dict()))
    train(log, model, optimizer, range(3))


if __name__ == "__main__":
    record.main()
