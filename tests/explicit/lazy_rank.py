"""castor.lazy on each rank: see test_lazy.py for what must be found."""
import hashlib
import time

import torch
import torch.distributed as dist

from castor.lazy import LazyInitContext
from found import end, found

MIB = 1 << 20


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(1024, 1024) for _ in range(16))
        self.apply(self.initialize)

    @staticmethod
    def initialize(module):
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.trunc_normal_(module.weight, std=0.02)

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def digest(model):
    summed = hashlib.sha256(torch.get_rng_state().numpy())
    for p in model.parameters():
        summed.update(p.detach().numpy())
    return summed.hexdigest()


def own_bytes():
    with open("/proc/self/smaps_rollup") as rollup:
        return sum(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Private_Dirty:"))


dist.init_process_group("gloo")
with LazyInitContext():  # the processes find each other
    torch.nn.Linear(1024, 1024)
    time.sleep(1)
dist.barrier()
before = own_bytes()
torch.manual_seed(5)
with LazyInitContext(default_device="cpu") as context:
    model = Model()
    found("a tensor's device", str(torch.empty(1).device))
found("own MiB", (own_bytes() - before) / MIB)
found("the same module", context.materialize(model, verbose=True) is model)
made = digest(model)
torch.manual_seed(5)
plain = digest(Model())
found("equal", made == plain)
with LazyInitContext(default_device="meta"):
    found("on meta", torch.nn.Linear(2, 2).weight.is_meta)
wrapped = torch.nn.parallel.DistributedDataParallel(model)
found("equal when wrapped", digest(model) == plain)
optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    wrapped(torch.full((2, 1024), 0.01 * (dist.get_rank() + 1))).square().mean().backward()
    optimizer.step()
found("trained", digest(model))
del wrapped, optimizer
end()
