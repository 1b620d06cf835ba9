"""A pipeline of three stages in which stage 1 fails in the middle of a batch, in the way that the argument says. Each rank says how it
ended, and after how long; where it goes on, what becomes of another batch."""
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

import castor
from castor.engine.schedule import PipelineSchedule
from found import found

how = sys.argv[1]
fails = os.environ["RANK"] == "1"


def fail(_=None):
    if how.startswith("dies"):
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("this stage does not work")


class Stage(nn.Linear):
    calls = 0

    def forward(self, x):
        self.calls += 1
        if fails and self.calls == 2 and how in ("dies", "raises", "goes on"):
            fail()
        x = super().forward(x)
        if fails and how.endswith("in backward"):
            x.register_hook(fail)
        if fails and how in ("shapes", "another shape"):
            return x[: self.calls if how == "shapes" else 1]
        return x.double() if fails and how == "another dtype" else x


def main():
    castor.launch_from_torch({"parallel": {"pipeline": 3}}, verbose=False)
    stage = Stage(8, 8)
    schedule = PipelineSchedule(4, tensor_shape=(2, 8) if how.startswith("another") else None)
    engine, *_ = castor.initialize(stage, torch.optim.SGD(stage.parameters(), lr=0.1), nn.MSELoss(), verbose=False, schedule=schedule)
    dist.barrier()
    began = time.monotonic()
    try:
        if fails and how == "ends before":
            raise SystemExit(3)
        engine.execute_schedule(iter([(torch.ones(8, 8), torch.ones(8, 8))]))
    except BaseException as error:
        found("error", f"{type(error).__name__}: {error}")
        found("seconds", time.monotonic() - began)
        if how != "goes on":
            raise
    if how == "goes on":
        time.sleep(8 * fails)  # longer than a neighbour may wait
        try:
            engine.execute_schedule(iter([(torch.ones(8, 8), torch.ones(8, 8))]))
        except RuntimeError as error:
            found("then", f"{error}")
        dist.barrier()
        raise SystemExit(4)


main()
