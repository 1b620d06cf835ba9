"""What scripts do with memory that is made in a forward pass, while nobody needs the sums of gradients: blocks may lie on them."""

import os
import threading
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import record

WIDTH, ROWS, CLASSES = 160, 96, 5


class Deep(nn.Module):
    """Its activations take as much memory as its parameters. `seen`: what a script does with them."""

    def __init__(self, layers=6, seen=None):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.seen = seen

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = x + torch.tanh(layer(x))
            if self.seen:
                self.seen(number, x)
        return self.head(x)


def batch(step):
    generator = torch.Generator().manual_seed(1000 * step + torch.distributed.get_rank())
    return torch.randn(ROWS, WIDTH, generator=generator), torch.randint(0, CLASSES, (ROWS,), generator=generator)


def wrapped(seen=None, kind=torch.optim.SGD, **settings):
    model = DistributedDataParallel(Deep(seen=seen))
    return model, kind(model.parameters(), lr=1e-2, **settings)


def step_once(model, optimizer, step, **settings):
    x, y = batch(step)
    loss = F.cross_entropy(model(x), y)
    loss.backward(**settings)
    optimizer.step()
    optimizer.zero_grad()
    return loss


@record.case
def nothing_lives_on(log):
    model, optimizer = wrapped()
    for step in range(8):
        log.step(step_once(model, optimizer, step), model, optimizer)


@record.case
def activations_are_kept(log):
    """Of every step, to the end."""
    kept = []
    model, optimizer = wrapped(lambda number, x: kept.append(x.detach()))
    for step in range(6):
        log.step(step_once(model, optimizer, step), model, optimizer)
    log.note("kept", torch.stack(kept))


@record.case
def activations_of_the_last_step(log):
    """Each step reads those of the step before it, and edits them."""
    last, seen = {}, []

    def look(number, x):
        if number in last:
            seen.append(float(last[number].add_(1).sum()))
        last[number] = x.detach().clone()

    model, optimizer = wrapped(look, torch.optim.AdamW)
    for step in range(6):
        log.step(step_once(model, optimizer, step), model, optimizer)
    log.note("seen", torch.tensor(seen))


@record.case
def graphs_are_kept(log):
    """A graph that does not need the model, made in its forward pass, goes back after the step."""
    graphs = []

    def grow(number, x):
        leaf = (x.detach() + number).requires_grad_()
        graphs.append((leaf, torch.exp(torch.tanh(leaf) * torch.sigmoid(leaf)).sum()))

    model, optimizer = wrapped(grow)
    for step in range(6):
        log.step(step_once(model, optimizer, step), model, optimizer)
        for leaf, end in graphs:
            end.backward()
            log.note(f"leaf {step}", leaf.grad)
        graphs.clear()


@record.case
def a_fork_in_the_forward_pass(log):
    """The child looks at the activations when its parent has long gone on."""
    children, made = [], []

    def fork(number, x):
        made.append(x)
        if number != 4:
            return
        go, told = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            os.close(go[1])
            os.read(go[0], 1)
            os.write(told[1], torch.stack([float_sum(x) for x in made]).numpy().tobytes())
            os._exit(0)
        os.close(go[0])
        os.close(told[1])
        children.append((child, go[1], told[0]))

    def float_sum(x):
        return x.detach().double().sum()

    model, optimizer = wrapped(fork)
    for step in range(5):
        loss = step_once(model, optimizer, step)
        sums = torch.stack([float_sum(x) for x in made[:5]])
        made.clear()
        child, go, told = children.pop()
        step_once_more = [torch.full((ROWS, WIDTH), float(step)) for _ in range(8)]
        os.close(go)
        seen = torch.frombuffer(bytearray(os.read(told, 4096)), dtype=torch.float64)
        os.close(told)
        os.waitpid(child, 0)
        assert torch.equal(seen, sums), (seen, sums)
        assert all(float(one.sum()) == step * ROWS * WIDTH for one in step_once_more)
        log.step(loss, model, optimizer)


@record.case
def a_thread_goes_on_writing(log):
    """To memory that was made in a forward pass, through the backward pass."""
    made, done = [], threading.Event()

    def count():
        for value in range(1, 4000):
            if done.is_set() and value > 50:
                break
            for x in list(made):
                assert bool((x == x[0, 0]).all()), "what a thread has written is lost"
                x.add_(1)

    model, optimizer = wrapped(lambda number, x: made.append(torch.zeros(ROWS, WIDTH)) if number % 2 else None)
    for step in range(4):
        made.clear()
        done.clear()
        x, y = batch(step)
        loss = F.cross_entropy(model(x), y)
        failures = []
        thread = threading.Thread(target=lambda: run(count, failures))
        thread.start()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        done.set()
        thread.join()
        assert not failures, failures
        log.step(loss, model, optimizer)


def run(work, failures):
    try:
        work()
    except Exception as error:
        failures.append(error)


@record.case
def parameters_replaced_and_made(log):
    """Between the steps, when sums are lent: data of its own for each parameter, then another model, then neither."""
    model, optimizer = wrapped()
    for step in range(9):
        loss = step_once(model, optimizer, step)
        if step == 2:
            for p in model.parameters():
                p.data = p.data.clone()
        if step == 4:
            other, other_optimizer = wrapped(kind=torch.optim.Adam)
        if step > 4 and step != 8:
            log.step(step_once(other, other_optimizer, 50 + step), other, other_optimizer)
        if step == 7:
            del other, other_optimizer
        log.step(loss, model, optimizer)


@record.case
def gradients_dropped_at_other_times(log):
    """Before the backward pass, one by one, in place, or not at all."""
    model, optimizer = wrapped(momentum=0.9)
    parameters = list(model.parameters())
    for step in range(10):
        x, y = batch(step)
        out = model(x)
        if step % 3 == 1:
            optimizer.zero_grad()
        elif step % 3 == 2:
            for p in parameters[::2]:
                p.grad = None
            for p in parameters[1::2]:
                if p.grad is not None:
                    p.grad.zero_()
        loss = F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        if step % 2:
            optimizer.zero_grad(set_to_none=step % 4 == 1)
        log.step(loss, model, optimizer)
    kept = [p.grad.clone() for p in parameters if p.grad is not None]
    optimizer.zero_grad()
    with torch.no_grad():
        model(batch(77)[0])
    log.note("kept", torch.cat([grad.flatten() for grad in kept]) if kept else torch.zeros(1))


@record.case
def gradients_read_late(log):
    """By one rank, when the other one is in its next forward pass."""
    model, optimizer = wrapped()
    for step in range(8):
        x, y = batch(step)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if (step + torch.distributed.get_rank()) % 2:
            time.sleep(0.05)
        log.gradients(model)
        optimizer.zero_grad()
        log.step(loss, model, optimizer)


@record.case
def evaluated_between(log):
    """Outputs of an evaluation outlive the next step."""
    model, optimizer = wrapped()
    outputs = []
    for step in range(6):
        with torch.no_grad():
            outputs.append(model.module.layers[0](torch.full((ROWS * 4, WIDTH), 0.5)))
        log.step(step_once(model, optimizer, step), model, optimizer)
    log.note("outputs", torch.cat(outputs))


@record.case
def used_by_turns(log):
    """Half of the layers in each step; the others' gradients are zero or none."""

    class ByTurns(Deep):
        def forward(self, x, turn):
            for layer in self.layers[turn::2]:
                x = x + torch.tanh(layer(x))
            return self.head(x)

    model = DistributedDataParallel(ByTurns(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in range(8):
        x, y = batch(step)
        loss = F.cross_entropy(model(x, step % 2), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        log.step(loss, model, optimizer)


class Meeting(torch.autograd.Function):
    """The ranks meet in its backward pass."""

    @staticmethod
    def forward(context, x, group):
        context.group = group
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        torch.distributed.all_reduce(torch.ones(1), group=context.group)
        return gradient, None


@record.case
def a_meeting_in_the_backward_pass(log):
    """One rank alone has 39 MB of gradients before it: more than the 32 MiB that may wait for their sums."""
    group = torch.distributed.new_group()

    class Wide(Deep):
        def __init__(self):
            super().__init__()
            self.more = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 8 * WIDTH), nn.Linear(8 * WIDTH, WIDTH)) for _ in range(24))

        def forward(self, x):
            for layer in self.layers:
                x = x + torch.tanh(layer(x))
            x = Meeting.apply(x, group)
            if torch.distributed.get_rank() == 0:
                for layer in self.more:
                    x = x + torch.tanh(layer(x))
            return self.head(x)

    model = DistributedDataParallel(Wide(), find_unused_parameters=True, bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in range(3):
        log.step(step_once(model, optimizer, step), model, optimizer)


if __name__ == "__main__":
    record.main()
