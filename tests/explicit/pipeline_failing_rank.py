"""A pipeline of two stages that cannot go on: argument `microbatches`, `dies` or `shapes`."""
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn

import castor
from castor.engine.schedule import PipelineSchedule

how = sys.argv[1]
castor.launch_from_torch({"parallel": {"pipeline": 2}}, verbose=False)
rank = dist.get_rank()


class Stage(nn.Linear):
    calls = 0

    def forward(self, x):
        self.calls += 1
        if how == "dies" and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x[: self.calls] if how == "shapes" else x)


stage = Stage(8, 8)
engine, *_ = castor.initialize(stage, torch.optim.SGD(stage.parameters(), lr=0.1), nn.MSELoss(), verbose=False,
                               schedule=PipelineSchedule(2 + 2 * rank if how == "microbatches" else 4))
engine.execute_schedule(iter([(torch.ones(8, 8), torch.ones(8, 8))]))
