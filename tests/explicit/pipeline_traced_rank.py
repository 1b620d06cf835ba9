"""Pipeline stages whose passes take time, for the trace: see test_pipeline_report.py. Arguments: model chunks of each stage, 0: without
interleaving, -1: the zero-bubble schedule; microbatches."""
import sys
import time

import torch
from torch import nn

import castor
from castor.engine import schedule as schedules
from castor.engine._parallel_groups import groups
from castor.pipeline import partition
from found import end, found

chunks, microbatches = int(sys.argv[1]), int(sys.argv[2])
SECONDS = 0.01


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        time.sleep(SECONDS)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(SECONDS)
        return gradient


class Layer(nn.Linear):
    def forward(self, x):
        return Slow.apply(super().forward(x))


castor.launch_from_torch({"parallel": {"pipeline": 2}}, verbose=False)
job = groups()
parts = partition(nn.Sequential(*(Layer(4, 4) for _ in range(job.stages * max(chunks, 1)))), job.stages * max(chunks, 1))
part = nn.ModuleList(parts[job.stage::job.stages]) if chunks > 0 else parts[job.stage]
kind = schedules.ZeroBubblePipelineSchedule if chunks < 0 else schedules.PipelineSchedule
schedule = schedules.InterleavedPipelineSchedule(microbatches, chunks) if chunks > 0 else kind(microbatches)
engine, *_ = castor.initialize(part, torch.optim.SGD(part.parameters(), lr=0.1), nn.MSELoss(), schedule=schedule, verbose=False)
data = torch.randn(microbatches, 4), torch.randn(microbatches, 4)
for _ in range(3):
    engine.zero_grad()
    engine.execute_schedule(iter([data]))
    engine.step()
engine.execute_schedule(iter([data]), forward_only=True)
found("stage", job.stage)
end()
