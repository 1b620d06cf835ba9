"""castor.utils.gradient_accumulation in one process: see test_accumulation.py for what must be found."""
import copy
import pickle

import torch

from castor.utils.gradient_accumulation import (
    GradAccumDataloader, GradAccumGradientHandler, GradAccumLrSchedulerByStep, GradAccumOptimizer, accumulate_gradient,
)
from found import found, raised


class Recorded:
    """Stands for an optimizer; says what is asked of it."""

    def __init__(self):
        self.calls = []
        self.name = "recorded"

    def __getattr__(self, name):
        if name not in ("backward", "backward_by_grad", "clip_grad_norm", "step", "zero_grad"):
            raise AttributeError(name)
        return lambda *arguments: self.calls.append([name, *[a.item() if isinstance(a, torch.Tensor) else a for a in arguments]]) or name


recorded = Recorded()
optimizer = GradAccumOptimizer(recorded, 3)
answers = []
for micro_step in range(1, 7):
    optimizer.zero_grad()
    if micro_step % 2:
        optimizer.backward(torch.tensor(6.0 * micro_step))
    else:
        optimizer.backward_by_grad(torch.tensor(1.0), torch.tensor(5.0))
    answers.append([optimizer.clip_grad_norm("model", 1.5), optimizer.step()])
found("answers", answers)
found("calls", recorded.calls)
found("its attributes", [optimizer.name, isinstance(optimizer, torch.optim.Optimizer), raised(AttributeError, lambda: optimizer.nothing)])


# ---- SGD: the loss is linear, so its gradient is the mean of the inputs
def linear(weights):
    model = torch.nn.Linear(len(weights), 1, bias=False)
    model.weight.data = torch.tensor([weights])
    return model


model = linear([1.0, 1.0])
sgd = torch.optim.SGD(model.parameters(), lr=0.5)
optimizer = GradAccumOptimizer(sgd, 2, model)
gradients, weights = [], []
for batch in ([[1.0, 0.0], [3.0, 0.0]], [[0.0, 2.0], [0.0, 4.0]], [[0.0, 0.0], [6.0, 8.0]], [[6.0, 8.0], [0.0, 0.0]]):
    optimizer.zero_grad()
    optimizer.backward(model(torch.tensor(batch)).mean())
    gradients.append(model.weight.grad.tolist()[0])
    norm = optimizer.clip_grad_norm(model, 2.5)
    gradients[-1].append(None if norm is None else round(norm.item(), 6))
    optimizer.step()
    weights.append([round(w, 6) for w in model.weight.tolist()[0]])
found("gradients", gradients)
found("weights", weights)
found("no clipping", optimizer.clip_grad_norm(model, 0.0))
found("groups", [optimizer.param_groups is sgd.param_groups, optimizer.state is sgd.state, optimizer.defaults["lr"], optimizer.state_dict() == sgd.state_dict()])


# ---- k micro-batches of b samples, and one batch of k * b
def train(kind, accumulate_size, **options):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    inputs, targets = torch.randn(4, 24, 6), torch.randn(4, 24, 1)
    optimizer = GradAccumOptimizer(kind(model.parameters(), **options), accumulate_size, model)
    for x, y in zip(inputs, targets):
        for part_x, part_y in zip(x.chunk(accumulate_size), y.chunk(accumulate_size)):
            optimizer.zero_grad()
            optimizer.backward(torch.nn.functional.mse_loss(model(part_x), part_y))
            optimizer.clip_grad_norm(model, 0.5)
            optimizer.step()
    return [p.detach() for p in model.parameters()]


for name, kind, options in (("SGD", torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}), ("AdamW", torch.optim.AdamW, {"lr": 0.01})):
    whole = train(kind, 1, **options)
    distances = [max((a - b).abs().max().item() for a, b in zip(whole, train(kind, k, **options))) for k in (2, 3, 6)]
    found(f"as one batch, {name}", max(distances) < 1e-5)


# ---- the loader
class Loader:
    """Not a PyTorch DataLoader."""

    batch_size = 7

    def __init__(self, count):
        self.count, self.pulled, self.begun = count, 0, 0

    def __len__(self):
        return self.count

    def __iter__(self):
        self.begun += 1
        return self.items()

    def items(self):
        for item in range(self.count):
            self.pulled += 1
            yield item
        self.pulled += 100  # the end was seen


def drawn(count, accumulate_size):
    loader = Loader(count)
    wrapped = GradAccumDataloader(loader, accumulate_size)
    return [len(wrapped), list(wrapped), loader.pulled, loader.begun]


found("drained", [drawn(10, 4), drawn(8, 4), drawn(3, 4), drawn(0, 4), drawn(3, 1)])
loader = Loader(5)
wrapped = GradAccumDataloader(loader, 2)
one = iter(wrapped)
found("as it is drawn", [loader.begun, [[next(one), loader.pulled] for _ in range(4)], raised(StopIteration, next, one), wrapped.batch_size, wrapped.pulled])
found("twice", [list(wrapped), list(wrapped), loader.begun, raised(StopIteration, next, wrapped), next(iter(wrapped)), next(wrapped)])


class Counting(torch.utils.data.Dataset):
    taken = []

    def __len__(self):
        return 10

    def __getitem__(self, index):
        self.taken.append(index)
        return index


real = torch.utils.data.DataLoader(Counting(), batch_size=2)
wrapped = GradAccumDataloader(real, 2)
found("DataLoader", [len(wrapped), [b.tolist() for b in wrapped], list(Counting.taken), wrapped.batch_size, wrapped.dataset is real.dataset])
Counting.taken.clear()
found("DataLoader, none", [list(GradAccumDataloader(real, 6)), Counting.taken])
found("no length", raised(TypeError, GradAccumDataloader, iter([1, 2]), 2))

# ---- the scheduler and the handler
sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=8.0)
plain = torch.optim.lr_scheduler.StepLR(sgd, step_size=1, gamma=0.5)
scheduler = GradAccumLrSchedulerByStep(plain, 3)
rates = []
for _ in range(7):
    sgd.step()
    scheduler.step()
    rates.append(scheduler.get_last_lr()[0])
found("rates", rates)
found("scheduler's attributes", [scheduler.last_epoch, scheduler.base_lrs, scheduler.optimizer is sgd, scheduler.state_dict() == plain.state_dict(),
                                 isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler)])
found("effective steps", [GradAccumLrSchedulerByStep.compute_effective_steps_per_epoch(range(n), k) for n, k in ((10, 4), (8, 4), (3, 4), (7, 1))])
on_wrapper = torch.optim.lr_scheduler.StepLR(GradAccumOptimizer(sgd, 2), step_size=1, gamma=0.5)
on_wrapper.optimizer.step()
on_wrapper.step()
found("a scheduler of the wrapper", [g["lr"] for g in sgd.param_groups])


class Handler:
    def __init__(self):
        self.fired = 0

    def handle_gradient(self):
        self.fired += 1


handler = GradAccumGradientHandler(Handler(), 2)
found("fired", [(handler.handle_gradient(), handler.grad_handler.fired)[1] for _ in range(5)])

# ---- all of it, copies, errors
model, sgd = linear([1.0, 1.0]), None
sgd = torch.optim.SGD(model.parameters(), lr=1.0)
parts = accumulate_gradient(model, sgd, Loader(5), 2)
found("parts", [type(p).__name__ for p in parts])
parts = accumulate_gradient(model, sgd, Loader(5), 2, gradient_handlers=[Handler()], lr_scheduler=torch.optim.lr_scheduler.StepLR(sgd, 1))
found("parts with all", [type(parts[0]).__name__, type(parts[1]).__name__, [type(h).__name__ for h in parts[2]], type(parts[3]).__name__])
parts[0].backward(model(torch.ones(1, 2)).mean())
copied, unpickled = copy.deepcopy(parts[0]), pickle.loads(pickle.dumps(GradAccumOptimizer(sgd, 2)))
found("copies", [copied.accumulate_step, parts[0].step(), unpickled.accumulate_size, unpickled.accumulate_step, unpickled.param_groups[0]["lr"]])
found("errors", [raised(ValueError, GradAccumOptimizer, sgd, 0), raised(ValueError, GradAccumDataloader, Loader(3), -2),
                 raised(ValueError, GradAccumLrSchedulerByStep, plain, 1.5), raised(TypeError, GradAccumGradientHandler, 7, 2)])
