"""Steps of 2000 launches each of `x.add_(1)`, by what x is, in turn, on a simulated device: prints what each took, as JSON.

Under a budget of which nothing is left for homes all model data lies on the host: the gradient in a home that no product reads, the norm's
weight in one where parameters are registered and none was read by a product, and the product's weight, too large for the segment of
PyTorch's allocator that holds the norm, in one that was copied into a slot. Without Castor all four are alike.
"""
import json
import sys
import time

import torch

LAUNCHES, SIZE = 2000, 512
steps = int(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.LayerNorm(SIZE), torch.nn.Linear(SIZE, SIZE + SIZE // 2, bias=False)).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(4, SIZE, device="cuda")).sum().backward()
KINDS = {
    "no home": torch.ones(SIZE, device="cuda"),
    "a gradient's home": model[0].weight.grad,
    "a parameter's home": model[0].weight.data,
    "a parameter's home, in a slot": model[1].weight.data[0],
}
if "homes" in sys.argv[2:]:
    from castor.agent import core
    from castor.agent.device import homes

    tiers = homes.tiers(list(KINDS.values()))
    if tiers != [core.HOME_NONE] + [core.HOME_HOST] * 3 or homes.statistics(0).copies == 0:
        sys.exit(f"the homes are not as they should be: {tiers}, {homes.statistics(0).copies} copies into slots")


def step(x):
    for _ in range(LAUNCHES):
        x.add_(1)
    torch.cuda.synchronize()


for x in KINDS.values():
    step(x)
wall, cpu = {kind: [] for kind in KINDS}, {kind: [] for kind in KINDS}
for _ in range(steps):
    for kind, x in KINDS.items():
        begin, begin_cpu = time.perf_counter_ns(), time.thread_time_ns()
        step(x)
        cpu[kind].append(time.thread_time_ns() - begin_cpu)
        wall[kind].append(time.perf_counter_ns() - begin)
print(json.dumps({"step_ns": wall, "step_cpu_ns": cpu}))
