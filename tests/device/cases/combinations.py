"""Memory that parameters, gradients and states share, threads, and parameters that are no leaves or lie on several devices."""
import contextlib
import copy
import importlib
import threading
from unittest import mock

import torch
import torch.nn.functional as F

from . import case
from .networks import MLP, batch, train


@case(optimizers=("momentum", "adamw", "adagrad"))
def one_memory_twice(log, make):
    """Two weights over one storage, each of which is stepped, and a bias that is a part of it."""
    model = MLP(width=512).cuda()
    first, second = model.blocks[0][1], model.blocks[1][1]
    second.weight.data = first.weight.data
    second.bias.data = first.weight.data[5]
    train(log, model, make(model.parameters()))


@case(optimizers=("momentum", "adamw", "rmsprop"))
def gradients_assigned(log, make):
    """One gradient for two parameters, and gradients that repeat one element."""
    model = MLP(width=512).cuda()
    optimizer = make(model.parameters())
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        model.blocks[1][1].weight.grad = model.blocks[0][1].weight.grad
        for p in (model.enter.weight, model.enter.bias):
            p.grad = torch.full((), 0.01 * step, device="cuda").expand_as(p)
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


@case(optimizers=("sgd", "momentum", "adamw", "adamw-fused"))
def threads(log, make):
    """Two models train at once, each in its thread and on its stream."""
    models = [MLP(width=512) for _ in range(2)]
    losses, optimizers, failed = [[], []], [None, None], []

    def work(index):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                model = models[index].cuda()
                optimizer = optimizers[index] = make(model.parameters())
                for step in range(3):
                    x, y = batch(step + 10 * index)
                    optimizer.zero_grad()
                    loss = F.cross_entropy(model(x), y)
                    loss.backward()
                    optimizer.step()
                    losses[index].append(loss.detach())
        except Exception as error:
            failed.append(error)

    working = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in working:
        thread.start()
    for thread in working:
        thread.join()
    torch.cuda.synchronize()
    if failed:
        raise failed[0]
    for a, b in zip(*losses):
        log.step(a + b)
    log.end({"a": models[0], "b": models[1]}, *optimizers)


@case(optimizers=("sgd", "adamw"))
def streams_while_a_thread_moves(log, make):
    """While a thread moves a model to the device, memory of one stream is read by another, comes to an optimizer or is freed; then its own
    stream writes it. Over a slow link it was not read yet."""
    own, reads, values = torch.cuda.Stream(), torch.cuda.Stream(), [torch.randn(512, 512).pin_memory() for _ in range(2)]
    busy = torch.empty(16 << 20, device="cuda"), torch.empty(16 << 20).pin_memory()
    model = torch.nn.Linear(512, 512)
    for step in range(3):
        moves, ends = threading.Event(), threading.Event()

        def move(t):
            if t.numel():
                moves.set()
                ends.wait(60)
            return t.cuda()

        with torch.cuda.stream(own):
            weight, read = (torch.empty(512, 512, device="cuda").copy_(value, non_blocking=True) for value in values)
        reads.wait_stream(own)
        model.weight, model.bias.data = torch.nn.Parameter(weight), model.bias.data.cuda()
        thread = threading.Thread(target=torch.nn.Linear(8, 8)._apply, args=(move,))
        thread.start()
        moves.wait(60)
        seen = torch.empty(512, 512).pin_memory()
        with torch.cuda.stream(reads):
            busy[0].copy_(busy[1], non_blocking=True)
            optimizer = make(model.parameters())
            busy[0].copy_(busy[1], non_blocking=True)
            seen.copy_(read, non_blocking=True)
            read.record_stream(reads)
        del weight, read
        ends.set()
        thread.join()
        with torch.cuda.stream(own):
            written = [torch.zeros(512, 512, device="cuda") for _ in values]
        torch.cuda.current_stream().wait_stream(reads)
        loss = model(batch(step, 2)[0].repeat(1, 2)).square().mean()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        log.step(loss, seen=seen.norm(), written=sum(written).norm())
    log.end(model, optimizer)


@case(optimizers=("momentum", "adamw", "adamw-capturable"))
def no_leaves(log, make):
    """An inner optimizer steps what was computed from the parameters, and keeps its gradient."""
    model = MLP(width=512).cuda()
    optimizer = make(model.parameters())
    scale = torch.ones((), device="cuda", requires_grad=True)
    for step in range(2):
        x, y = batch(step)
        fast = {name: p * scale for name, p in model.named_parameters()}
        for p in fast.values():
            p.retain_grad()
        torch.func.functional_call(model, fast, (x,)).square().mean().backward()
        make(list(fast.values())).step()
        with torch.no_grad():
            for p, moved in zip(model.parameters(), fast.values()):
                p.copy_(moved)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


@case(optimizers=("momentum", "adamw"))
def copied_with_its_optimizer(log, make):
    model = MLP(width=512).cuda()
    optimizer = make(model.parameters())
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss)
        model, optimizer = copy.deepcopy((model, optimizer))
    leaf = torch.ones(70000, device="cuda", requires_grad=True)
    leaf.square().sum().backward()
    log.note("the gradient of a copy", copy.deepcopy(leaf).grad.sum())
    log.end(model, optimizer)


@contextlib.contextmanager
def forms_of_steps():
    """The functions of torch.optim that step meanwhile: one loop over tensors, or foreach, which has other bits on a device."""
    seen = set()
    with contextlib.ExitStack() as patches:
        for module in map(importlib.import_module, ("torch.optim.adam", "torch.optim.sgd")):
            for name in [name for name in vars(module) if name.startswith(("_single_tensor_", "_multi_tensor_", "_fused_"))]:
                stock = getattr(module, name)
                patches.enter_context(mock.patch.object(module, name, lambda *args, _name=name, _stock=stock, **kwargs: (seen.add(_name), _stock(*args, **kwargs))[1]))
        yield seen


@case(optimizers=("momentum", "adamw"))
def half_on_the_host(log, make):
    """Half of the model is on the device."""
    model = MLP(width=512)
    model.blocks.cuda()
    optimizer = make(model.parameters())
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        hidden = model.enter(x.cpu()).cuda()
        for block in model.blocks:
            hidden = hidden + block(hidden)
        loss = F.cross_entropy(model.head(hidden.cpu()), y.cpu())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        with forms_of_steps() as forms:
            optimizer.step()
        log.step(loss)
        log.note("forms", sorted(forms))
    log.end(model, optimizer)


@case(optimizers=("momentum", "adamw"))
def on_two_devices(log, make):
    """The first and the last layer on one device, the rest on another, where it is moved once more."""
    model = MLP(width=512).cuda()
    model.blocks.to("cuda:1")
    optimizer = make(model.parameters())
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        hidden = model.enter(x).to("cuda:1")
        for block in model.blocks:
            hidden = hidden + block(hidden)
        loss = F.cross_entropy(model.head(hidden.to("cuda:0")), y)
        loss.backward()
        optimizer.step()
        log.step(loss)
        if step == 1:
            model.cpu().cuda().blocks.to("cuda:1")
    log.end(model, optimizer)


@case(optimizers=("momentum",))
def states_of_the_script(log, make):
    """States that the script makes itself, and looks at by other names."""
    model = MLP(width=512).cuda()
    optimizer = make(model.parameters())
    velocity = torch.zeros(sum(p.numel() for p in model.parameters()), device="cuda")
    first = 0
    for p in model.parameters():
        optimizer.state[p]["momentum_buffer"] = velocity[first : first + p.numel()].view_as(p)
        first += p.numel()
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss, velocity=velocity.norm())
    log.end(model, optimizer)


@case(optimizers=("momentum", "adamw"))
def captured(log, make):
    """What was on the device when a graph was captured keeps its address: replays write there."""
    model = MLP(width=512).cuda()
    optimizer = make(model.parameters())
    for step in range(3):
        x, y = batch(step)
        loss = F.cross_entropy(model(x), y)
        for p, grad in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
            p.grad = grad
        if step == 1:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):  # of nothing
                pass
        before = [t.data_ptr() for p in model.parameters() for t in (p, p.grad)]
        optimizer.step()
        if step:
            log.note("moved", before != [t.data_ptr() for p in model.parameters() for t in (p, p.grad)])
        log.step(loss)
    log.end(model, optimizer)
