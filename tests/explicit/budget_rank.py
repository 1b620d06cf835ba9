"""A few steps under CASTOR_MEMORY_BUDGET, set by the test: see test_budget.py for what must be found."""
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

from found import end, found

rank = int(os.environ["RANK"])
torch.manual_seed(0)
dist.init_process_group("gloo")
widths = (64, *(256,) * 9, 8)
network = nn.Sequential(*[layer for sizes in zip(widths, widths[1:]) for layer in (nn.Linear(*sizes), nn.Tanh())])
model = nn.parallel.DistributedDataParallel(network)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 5):
    samples = torch.randn(8, 64, generator=torch.Generator().manual_seed(2 * step + rank))
    optimizer.zero_grad()
    loss = model(samples).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
found("losses", losses)
found("parameters", [p.numel() for p in network.parameters()])
if "castor" in sys.modules:
    found("memory", sys.modules["castor"].memory_stats())
end()
