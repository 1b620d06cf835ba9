"""Ranks of a pipeline that disagree, or that have nothing to train on: all of them must say the same, none may wait."""
import time

import torch
import torch.distributed as dist
from torch import nn

import castor
from castor.engine.schedule import InterleavedPipelineSchedule, PipelineSchedule

BATCH = 12


class Nothing(nn.Module):
    """Has no parameters."""

    def forward(self, x):
        return x * 1.0


def _said(function, *arguments, **named):
    """[what the call raises, and whether it takes less than 5 s]."""
    began = time.monotonic()
    try:
        function(*arguments, **named)
        text = "nothing"
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    return [text, time.monotonic() - began < 5]


def _schedule_of(cls, *arguments, dtype=torch.float32, **named):
    schedule = cls(*arguments, **named)
    schedule.dtype = dtype
    return schedule


def run():
    """{what rank 1 does otherwise, or all do wrong: what this rank says}, in a pipeline of all 4 ranks."""
    wrong, said = dist.get_rank() == 1, {}

    def usual():
        return PipelineSchedule(4)

    def batch(samples):
        return iter([(torch.ones(samples, 8), torch.ones(samples, 8))])

    def execute(make=usual, data=None, stage=None, **more):
        stage = nn.Linear(8, 8) if stage is None else stage
        optimizer = None if isinstance(stage, Nothing) else torch.optim.SGD(stage.parameters(), lr=0.1)
        engine, *_ = castor.initialize(stage, optimizer, nn.MSELoss(), schedule=make(), verbose=False)
        return _said(engine.execute_schedule, batch(BATCH) if data is None else data, **more)

    shaped = {"tensor_shape": (3, 8)}
    makes = {
        "microbatches": (usual, lambda: PipelineSchedule(2)),
        "schedules": (usual, lambda: InterleavedPipelineSchedule(4, 1)),
        "chunks": (lambda: InterleavedPipelineSchedule(4, 1), lambda: InterleavedPipelineSchedule(4, 2)),
        "shape": (lambda: PipelineSchedule(4, **shaped), lambda: PipelineSchedule(4, tensor_shape=(3, 4))),
        "no shape": (lambda: PipelineSchedule(4, **shaped), usual),
        "dtype": (lambda: PipelineSchedule(4, **shaped), lambda: _schedule_of(PipelineSchedule, 4, dtype=torch.float64, **shaped)),
    }
    for name, (right, other) in makes.items():
        said[name] = execute(other if wrong else right)
    said["evaluation"] = execute(forward_only=wrong)
    said["samples"] = execute(data=batch(24 if wrong else BATCH))
    said["indivisible"] = execute(data=batch(7))
    said["indivisible on one"] = execute(data=batch(7 if wrong else BATCH))
    said["ended"] = execute(data=iter([]))
    said["ended on one"] = execute(data=iter([]) if wrong else None)
    said["nothing to train"] = execute(stage=Nothing() if wrong else None)
    said["none"] = _said(PipelineSchedule, 0)
    launches = {"stages": {"pipeline": 2 if wrong else 4}, "no stages": {} if wrong else {"pipeline": 4},
                "tensor": {"pipeline": 2, "tensor": {"size": 2 if wrong else 1}}, "odd": {"pipeline": 3},
                "product": {"pipeline": 4, "tensor": {"size": 2}}, "negative": {"pipeline": -1}}
    for name, parallel in launches.items():
        said[name] = _said(castor.launch_from_torch, {"parallel": parallel}, verbose=False)
    return said
