"""castor.launch, castor.initialize, castor.engine and its schedule on each rank: see test_engine.py for what must be found."""
import os
import random
import sys

import numpy
import torch
import torch.distributed as dist

import castor
from castor.engine import Engine
from castor.engine.gradient_handler import BaseGradientHandler, DataParallelGradientHandler
from castor.engine.schedule import BaseSchedule, NonPipelineSchedule
from found import end, found, raised

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
WIDTH = 2048  # so that the node store takes the parameters


def linear(*weights):
    model = torch.nn.Linear(WIDTH, 1, bias=False)
    model.weight.data.zero_()
    model.weight.data[0, : len(weights)] = torch.tensor(weights)
    return model


def batch(*rows):
    inputs = torch.zeros(len(rows), WIDTH)
    for i, row in enumerate(rows):
        inputs[i, : len(row)] = torch.tensor(row)
    return inputs


def shown(tensor):
    return None if tensor is None else [round(value, 6) for value in tensor.detach().reshape(-1)[:2].tolist()]


def mean_difference(output, label):
    """Its gradient by the weights is the mean input."""
    return (output[:, 0] - label).mean()


def schedule_and_engine():
    model = linear(1.0, 2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    train, test, scheduler = [1], [2], torch.optim.lr_scheduler.StepLR(optimizer, 1)
    engine, *rest = castor.initialize(model, optimizer, mean_difference, train, test, scheduler)
    found("initialize", [type(engine) is Engine, rest[0] is train, rest[1] is test, rest[2] is scheduler, engine.model is model, engine.criterion is mean_difference])
    data = [(batch([1.0, 0.0], [3.0, 2.0]), torch.tensor([0.0, 4.0]))]

    # outputs 1 and 7, less 0 and 4: 1 and 3
    engine.train()
    trained = engine.execute_schedule(iter(data))
    found("step", [shown(trained[0]), shown(trained[1]), trained[2].item(), model.training, shown(model.weight.grad), engine.step(), shown(model.weight)])
    engine.zero_grad()
    found("zeroed", model.weight.grad is None)
    engine.eval()
    seen = engine.execute_schedule(iter(data), forward_only=True)
    found("forward only", [model.training, seen[0].requires_grad, round(seen[2].item(), 6), model.weight.grad is None])
    found("no outputs", [value if value is None else round(value.item(), 6) for value in engine.execute_schedule(iter(data), forward_only=True, return_output_label=False)])
    found("no loss", [value is None for value in engine.execute_schedule(iter(data), forward_only=True, return_loss=False)])
    engine.train()
    found("trained without the loss", [[value is None for value in engine.execute_schedule(iter(data), return_loss=False)], shown(model.weight.grad)])
    found("the end of the data", raised(StopIteration, engine.execute_schedule, iter([])))

    without = Engine(model, optimizer)
    found("no criterion", [raised(RuntimeError, without.execute_schedule, iter(data)),
                           shown(without.execute_schedule(iter(data), forward_only=True, return_loss=False)[0])])

    # ---- batches of other kinds
    class Sum(torch.nn.Module):
        def forward(self, a, b=1.0):
            return a + b, a

    engine = Engine(Sum(), None, lambda total, first, *labels, scale=1.0: (total - first - sum(labels)) * scale)
    rows = [((torch.tensor(1.0), torch.tensor(2.0)), [torch.tensor(0.5)]), ({"a": torch.tensor(1.0), "b": torch.tensor(4.0)}, {"scale": 10.0}), (torch.tensor(3.0), None)]
    found("kinds of batches", [engine.execute_schedule(iter([row]), forward_only=True)[2].item() for row in rows])
    schedule = NonPipelineSchedule(lambda given: (given["x"], given["y"] + 1))
    found("a function for the batch", [value.tolist() for value in schedule.load_batch(iter([{"x": torch.ones(3), "y": torch.zeros(3)}]))] + [schedule.batch_size])
    found("as loaded", [type(value).__name__ for value in schedule.load_batch(iter([{"x": "text", "y": 1}]), to_gpu=False)])
    found("no iterator", raised(RuntimeError, schedule.load_batch, None))
    found("abstract", [raised(TypeError, BaseSchedule) != "", raised(TypeError, BaseGradientHandler, model, optimizer) != "", raised(TypeError, Engine, model, optimizer, schedule=3)])

    # ---- clipping, handlers, backward by a gradient
    class Halved(BaseGradientHandler):
        def handle_gradient(self):
            for p in self._model.parameters():
                p.grad.mul_(0.5)

    model = linear(0.0, 0.0)
    engine, *_ = castor.initialize(model, torch.optim.SGD(model.parameters(), lr=1.0), clip_grad_norm=2.5, gradient_handlers=[Halved])
    engine.backward_by_grad(engine(batch([6.0, 8.0])), torch.ones(1, 1))
    gradient = shown(model.weight.grad)
    engine.step()
    found("handled, then clipped", [gradient, shown(model.weight.grad), shown(model.weight)])
    model.weight.grad = batch([3.0, 4.0])
    norms = [engine.clip_grad_norm(0), engine.clip_grad_norm(10.0).item(), engine.clip_grad_norm(model, 5.0).item(), engine.clip_grad_norm().item()]
    found("clip_grad_norm", [None if n is None else round(n, 4) for n in norms] + [shown(model.weight.grad)])

    # ---- accumulation
    model = linear(0.0, 0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    data = [(batch([2.0 * i, 4.0]), torch.zeros(1)) for i in range(5)]
    engine, loader, _, scheduler = castor.initialize(
        model, optimizer, mean_difference, data, lr_scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5), gradient_accumulation=2)
    batches, weights = iter(loader), []
    for _ in range(len(loader)):
        engine.zero_grad()
        engine.execute_schedule(batches)
        engine.step()
        scheduler.step()
        weights.append([*shown(model.weight), optimizer.param_groups[0]["lr"]])
    found("accumulated", weights)
    found("no loader to cut", castor.initialize(model, optimizer, gradient_accumulation=2)[1])


def launched():
    castor.launch_from_torch({"gradient_accumulation": 2, "BATCH_SIZE": 3})
    found("ranks", [dist.get_rank(), dist.get_world_size(), dist.get_backend(), int(torch.initial_seed())])
    draws = [torch.rand(1).item(), random.random(), float(numpy.random.rand())]
    torch.manual_seed(1024), random.seed(1024), numpy.random.seed(1024)
    found("seeded", draws == [torch.rand(1).item(), random.random(), float(numpy.random.rand())])
    castor.launch(rank, world, "::1", 1, seed=None, config={})  # the process group stays
    castor.launch_from_torch(config={"gradient_accumulation": 2, "BATCH_SIZE": 3})

    # ---- DistributedDataParallel, accumulating as configured
    model = linear(1.0 + rank, 0.0)  # rank 0's count
    engine, loader, *_ = castor.initialize(model, torch.optim.SGD(model.parameters(), lr=1.0), mean_difference, [
        (batch([2.0 * i, 8.0 * rank]), torch.zeros(1)) for i in range(3)])
    batches, weights = iter(loader), []
    for _ in range(len(loader)):
        engine.zero_grad()
        engine.execute_schedule(batches)
        engine.step()
        weights.append(shown(model.weight))
    found("under DDP", [type(engine.model).__name__, len(loader), weights])
    again, *_ = castor.initialize(engine.model, torch.optim.SGD(model.parameters(), lr=1.0), mean_difference)
    found("wrapped once", again.model is engine.model)


def handled():
    castor.launch_from_torch(config={"gradient_handler": [{"type": "DataParallelGradientHandler"}]})

    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.common, self.seldom, self.never = (torch.nn.Parameter(torch.full((2,), float(rank))) for _ in range(3))
            self.low = torch.nn.Parameter(torch.full((2,), float(rank), dtype=torch.bfloat16))
            self.frozen = torch.nn.Parameter(torch.full((2,), float(rank)), requires_grad=False)
            self.register_buffer("buffer", torch.full((2,), float(rank)))

        def forward(self, x):
            total = (self.common * x).sum() + (self.low * x).sum()
            return total + (self.seldom * 4).sum() if rank else total

    model = Mixed()
    engine, *_ = castor.initialize(model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0), lambda output: output)
    found("rank 0's", [shown(t) for t in (*model.parameters(), *model.buffers())])
    reductions = []
    all_reduce = dist.all_reduce
    dist.all_reduce = lambda tensor, *args, **kwargs: reductions.append(str(tensor.dtype)) or all_reduce(tensor, *args, **kwargs)
    engine.backward(engine(torch.tensor([1.0 + rank, 2.0])))
    kept = model.common.grad
    engine.step()
    dist.all_reduce = all_reduce
    found("averaged", [shown(p.grad) for p in model.parameters()] + [model.common.grad is kept, reductions, type(engine.model).__name__])
    found("stepped", [shown(p) for p in model.parameters()])
    again = DataParallelGradientHandler(model, None, dist.new_group([0]) if rank == 0 else dist.new_group([0]))
    model.common.grad = torch.full((2,), 1.0 + rank)
    again.handle_gradient()
    found("a group of one", shown(model.common.grad))


{"schedule": schedule_and_engine, "ddp": launched, "handler": handled}[sys.argv[1]]()
if world > 1:
    end()
elif sys.argv[1] == "schedule":
    found("not started by torchrun", raised(RuntimeError, castor.launch_from_torch))
    found("configurations", raised(ValueError, castor.launch, 0, 1, "localhost", 1, config={"fp16": {}, "SEED": 3}))
