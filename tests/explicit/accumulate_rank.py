"""castor.utils.gradient_accumulation under DistributedDataParallel: see test_accumulation.py for what must be found."""
import copy
import sys
import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from castor.utils.gradient_accumulation import GradAccumOptimizer, accumulate_gradient
from found import end, found

how = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()


class Communications:
    """How often a DDP module's gradients were communicated."""

    def __init__(self, module):
        self.count = 0
        if how == "none":
            module.register_comm_hook(None, self.hook)

    def hook(self, state, bucket):
        self.count += 1
        return dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True).get_future().then(lambda f: f.value()[0])

    def taken(self):
        if how == "none":
            return self.count
        from castor.agent.common import store

        return sum(group.sums for group in store.groups())


def wrapped(weights, **options):
    """A linear function of so many weights, padded so that the node store takes them; its mean's gradient is the mean input."""
    model = torch.nn.Linear(2048, 1, bias=False)
    model.weight.data.zero_()
    model.weight.data[0, : len(weights)] = torch.tensor(weights)
    ddp = DistributedDataParallel(model, **options)
    return model, ddp, Communications(ddp)


def batch(*rows):
    inputs = torch.zeros(len(rows), 2048)
    for i, row in enumerate(rows):
        inputs[i, : len(row)] = torch.tensor(row)
    return inputs


def shown(tensor):
    return [round(value, 6) for value in tensor.detach().reshape(-1)[:2].tolist()]


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.seldom = (torch.nn.Linear(2048, 1, bias=False) for _ in range(2))
        for layer in (self.used, self.seldom):
            layer.weight.data.zero_()

    def forward(self, x, also):
        return self.used(x) + self.seldom(x) if also else self.used(x)


def train(accumulate_size):
    torch.manual_seed(5)
    ddp = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)))
    optimizer = GradAccumOptimizer(torch.optim.AdamW(ddp.parameters(), lr=0.01), accumulate_size, ddp)
    torch.manual_seed(10 + rank)
    for _ in range(3):
        x, y = torch.randn(24, 64), torch.randn(24, 1)
        for part_x, part_y in zip(x.chunk(accumulate_size), y.chunk(accumulate_size)):
            optimizer.zero_grad()
            optimizer.backward(torch.nn.functional.mse_loss(ddp(part_x), part_y))
            optimizer.clip_grad_norm(ddp, 0.5)
            optimizer.step()
    return [p.detach().clone() for p in ddp.parameters()]


def main():
    # ---- communication at the k-th micro-step only; all k count
    model, ddp, communications = wrapped([1.0, 1.0])
    optimizer, *_ = accumulate_gradient(ddp, torch.optim.SGD(ddp.parameters(), lr=1.0), [], 3)
    before = communications.taken()
    steps = []
    for micro_step in range(6):
        optimizer.zero_grad()
        optimizer.backward(ddp(batch([3.0 * (micro_step + 1), 0.0], [0.0, 12.0 * rank])).mean())
        seen = [communications.taken() - before, shown(model.weight.grad), ddp.require_backward_grad_sync]
        answer = optimizer.step(lambda: torch.tensor(5.0)) if micro_step == 5 else optimizer.step()
        steps.append([*seen, None if answer is None else answer.item(), shown(model.weight)])
    found("steps", steps)

    # ---- an evaluation between micro-steps, with gradients enabled or not, changes nothing
    model, ddp, communications = wrapped([0.0, 0.0])
    optimizer = GradAccumOptimizer(torch.optim.SGD(ddp.parameters(), lr=1.0), 2, ddp)
    for micro_step in range(2):
        optimizer.backward(ddp(batch([2.0 + 2 * rank, 0.0])).mean())
        ddp.eval()
        with torch.no_grad():
            ddp(batch([1.0, 1.0]))
        ddp.train()
    optimizer.step()
    found("with evaluation", shown(model.weight))

    # ---- two forwards, then two backwards
    model, ddp, communications = wrapped([0.0, 0.0])
    optimizer = GradAccumOptimizer(torch.optim.SGD(ddp.parameters(), lr=1.0), 2, ddp)
    before = communications.taken()
    losses = [ddp(batch([2.0 + 2 * rank, 4.0 * i])).mean() for i in range(2)]
    for loss in losses:
        optimizer.backward(loss)
    found("forwards first", [communications.taken() - before, shown(model.weight.grad), optimizer.step(), shown(model.weight)])

    # ---- compiled around DistributedDataParallel
    model, ddp, communications = wrapped([0.0, 0.0])
    compiled = torch.compile(ddp, backend="eager")
    optimizer = GradAccumOptimizer(torch.optim.SGD(ddp.parameters(), lr=1.0), 2, compiled)
    before = communications.taken()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Dynamo does not know")
        for micro_step in range(4):
            optimizer.zero_grad()
            optimizer.backward(compiled(batch([2.0 + 2 * rank, 4.0 * (micro_step % 2)])).mean())
            optimizer.step()
    found("compiled", [communications.taken() - before, shown(model.weight.grad), shown(model.weight)])

    # ---- the script's own no_sync
    model, ddp, communications = wrapped([0.0, 0.0])
    optimizer = GradAccumOptimizer(torch.optim.SGD(ddp.parameters(), lr=1.0), 2, ddp)
    before = communications.taken()
    for micro_step in range(2):
        with ddp.no_sync():
            optimizer.backward(ddp(batch([2.0 + 2 * rank, 0.0])).mean())
    found("no_sync", [communications.taken() - before, shown(model.weight.grad), ddp.require_backward_grad_sync])


    # ---- a layer that only an earlier micro-batch uses, on rank 1
    model = Two()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = GradAccumOptimizer(torch.optim.SGD(ddp.parameters(), lr=1.0), 2, ddp)
    for micro_step in range(2):
        optimizer.backward(ddp(batch([8.0, 4.0]), rank == 1 and micro_step == 0).mean())
    found("used early", [shown(model.used.weight.grad), shown(model.seldom.weight.grad)])
    optimizer.step()
    found("used early, stepped", [shown(model.used.weight), shown(model.seldom.weight)])
    found("a copy", shown(copy.deepcopy(ddp).module.used.weight))

    # ---- two optimizers of one module
    model, ddp, communications = wrapped([0.0, 0.0])
    first = GradAccumOptimizer(torch.optim.SGD([{"params": [model.weight]}], lr=1.0), 2, ddp)
    second = GradAccumOptimizer(torch.optim.SGD([{"params": [model.weight]}], lr=1.0), 3, ddp)
    before = communications.taken()
    taken = []
    for micro_step in range(2):
        first.backward(ddp(batch([2.0 + 2 * rank, 0.0])).mean())
        taken.append(communications.taken() - before)
    first.step()
    found("two optimizers", [taken, shown(model.weight)])

    # ---- as one batch of k * b on each rank
    whole, parts = train(1), train(4)
    found("as one batch", max((a - b).abs().max().item() for a, b in zip(whole, parts)) < 1e-5)
    found("sums", [p.double().sum().item() for p in parts])


main()
end()
