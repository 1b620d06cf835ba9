"""Steps on the host: scripts that touch parameters, gradients and states at once after a step, in orders that chance chooses, while it may still be
under way; and parameters of which the processors step some."""
import copy
import os
import random
import threading

import torch
import torch.nn.functional as F

from . import case
from .networks import MLP, batch, train


def on_a_stream(work):
    side, here = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(here)
    with torch.cuda.stream(side):
        found = work()
    here.wait_stream(side)
    return found


def in_a_thread(work):
    found, here = [], torch.cuda.current_stream()

    def run():
        with torch.cuda.stream(here):
            found.append(work())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


class Toucher:
    """What it reads is kept and looked at later, so that nothing waits for the device before."""

    def __init__(self, model, optimizer, seed):
        self.model, self.optimizer, self.chance = model, optimizer, random.Random(seed)
        self.parameters, self.read, self.averages = list(model.parameters()), [], {}
        self.ways = [getattr(self, name) for name in dir(self) if name.startswith("way_")]

    def __call__(self, times):
        for _ in range(times):
            way, around = self.chance.choice(self.ways), self.chance.choice((lambda work: work(), lambda work: work(), on_a_stream, in_a_thread))
            p = self.chance.choice(self.parameters)

            def work(way=way, p=p):
                with torch.no_grad():
                    return way(p)

            found = around(work)
            if found is not None:
                self.read.append(found)

    def states(self, p):
        return [s for _, s in sorted(self.optimizer.state[p].items()) if isinstance(s, torch.Tensor) and s.dim()]

    def way_reads(self, p):
        return p.square().sum()

    def way_copies_to_the_host(self, p):
        return p.cpu().double().sum()

    def way_copies(self, p):
        return p.clone()[..., 0].sum()

    def way_reads_a_gradient(self, p):
        return p.grad.abs().max()

    def way_reads_states(self, p):
        return sum(s.sum() for s in self.states(p)) if self.states(p) else None

    def way_multiplies(self, p):
        if p.dim() > 1:
            return p @ p.t()[:, :3].contiguous()
        return None

    def way_writes(self, p):
        p.mul_(0.999)

    def way_writes_from_the_host(self, p):
        p.copy_(torch.full(p.shape, 0.01, pin_memory=True), non_blocking=True)

    def way_writes_a_gradient(self, p):
        p.grad.mul_(3)

    def way_clears_a_gradient(self, p):
        p.grad.zero_()

    def way_writes_states(self, p):
        for s in self.states(p):
            s.mul_(0.9)

    def way_loads_states(self, p):
        self.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))

    def way_averages(self, p):
        if p in self.averages:
            self.averages[p].lerp_(p, 0.5)
        else:
            self.averages[p] = p.clone()
        return self.averages[p].sum()

    def way_steps_again(self, p):
        self.optimizer.step()

    def way_steps_again_with_other_gradients(self, p):
        for factor in 0.5, 3:  # of new memory, which is on the device
            for q in self.parameters:
                q.grad = q.grad * factor
            self.optimizer.step()

    def way_exchanges(self, p):
        p.data = p.data.clone()

    def way_norms(self, p):
        return torch.nn.utils.get_total_norm([q.grad for q in self.parameters])

    def way_lists(self, p):
        torch._foreach_mul_(self.parameters, 0.9999)

    def way_forks(self, p):
        """As a DataLoader starts a worker, which does not use the device."""
        worker = os.fork()
        if not worker:
            os._exit(0)
        return torch.tensor(float(os.waitpid(worker, 0)[1]))

    def way_takes_gradients(self, p):
        with torch.enable_grad():
            return torch.autograd.grad(self.model(batch(7)[0]).pow(2).mean(), p)[0].sum()

    def way_passes(self, p):
        return self.model(batch(7)[0]).sum()


@case
def touched_after_steps(log, make):
    """Between a step and the next pass, in optimizers' hooks, and between a backward pass and its step."""
    for seed in range(6):
        torch.manual_seed(seed)
        model = MLP().cuda()
        optimizer = make(model.parameters())
        toucher = Toucher(model, optimizer, seed)
        if seed % 2:
            optimizer.register_step_post_hook(lambda *_, toucher=toucher: toucher.read.append(toucher.way_reads(toucher.parameters[seed]).detach()))
        for step in range(5):
            x, y = batch(step)
            optimizer.zero_grad(set_to_none=bool(seed % 3))
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            if seed % 4 == 3:
                toucher(1)
            optimizer.step()
            toucher(4)
            log.step(loss)
        log.note("read", torch.stack([found.double().sum().cpu() for found in toucher.read]))
        log.end(model, optimizer)


class Own(torch.nn.Parameter):
    """A parameter of a class of the script's own."""


@case
def parameters_of_another_class(log, make):
    """Some of them, which PyTorch's foreach functions leave out."""
    model = MLP().cuda()
    for number, module in enumerate(module for module in model.modules() if isinstance(module, torch.nn.Linear)):
        if number % 2:
            module.weight = Own(module.weight.data)
    train(log, model, make(model.parameters()))


def clamp(p):
    p.grad.clamp_(-0.01, 0.01)


class Stopped(Exception):
    """Of the script's hook, which ends a backward pass."""


@case
def touched_between_micro_steps(log, make):
    """Gradients that several passes add up to: touched between these, seen by hooks, and left by a pass that raises."""
    for seed in range(6):
        torch.manual_seed(seed)
        model = MLP().cuda()
        first, last = (list(model.parameters())[at] for at in (0, -2))
        read, stop = [], []
        if seed == 1:  # before there is an optimizer, and so before Castor's
            last.register_post_accumulate_grad_hook(lambda p, read=read: read.append(p.grad.sum()))
        optimizer = make(model.parameters())
        toucher = Toucher(model, optimizer, 100 + seed)
        if seed == 2:
            last.register_hook(lambda new, p=last, read=read: read.append(new.sum() if p.grad is None else (p.grad - new).sum()))
        if seed == 3:
            last.register_post_accumulate_grad_hook(clamp)
        if seed == 4:
            def may_stop(_, stop=stop):
                if stop:
                    raise Stopped

            first.register_hook(may_stop)
        for step in range(4):
            optimizer.zero_grad(set_to_none=bool(seed % 3))
            for micro in range(3):
                x, y = batch(3 * step + micro)
                loss = F.cross_entropy(model(x), y) / 3
                stop[:] = [True] if seed == 4 and micro == 1 else []
                try:
                    loss.backward(retain_graph=seed == 5)
                    if seed == 5:
                        loss.backward()
                except Stopped:
                    pass
                toucher(seed % 2)
            optimizer.step()
            log.step(loss)
        log.note("read", torch.stack([found.double().sum().cpu() for found in [*read, *toucher.read, torch.zeros(1)]]))
        log.end(model, optimizer)
