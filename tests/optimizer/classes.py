"""Steps torch.optim's classes before and after Castor's kernels took the place of their loops; prints what differs, as JSON.

    classes.py auto|hybrid|native
"""
import copy
import functools
import importlib
import itertools
import json
import sys

import torch

import calls
from castor.agent import core
from castor.agent.optim import kernels

SHAPES = ((1,), (37,), (3, 5), (1000, 33), (), (7,), (0,), (70001,))
STEPS = 5
THREADS = (1, 2)


def product(**options):
    return [dict(zip(options, values)) for values in itertools.product(*options.values())]


def writes_gradients(nesterov=False, foreach=False, weight_decay=0, maximize=False, **options):
    """Whether PyTorch's step leaves something else in the gradients."""
    return nesterov and foreach and not weight_decay and not maximize


def cases():
    """(class, options, what is done with it): bit for bit, and by the kernels."""
    forms = ({}, {"foreach": True}, {"foreach": False}, {"fused": True})
    for cls, form in itertools.product((torch.optim.Adam, torch.optim.AdamW), forms):
        for options in product(amsgrad=(False, True), maximize=(False, True), weight_decay=(0, 0.1)):
            yield cls, {**options, **form}, {}
    for form in forms:
        for options in product(momentum=(0, 0.9), dampening=(0, 0.3), nesterov=(False, True), maximize=(False, True), weight_decay=(0, 0.1)):
            options.update(form)
            if (not options["nesterov"] or options["momentum"] and not options["dampening"]) and not writes_gradients(**options):
                yield torch.optim.SGD, options, {}
    for cls in (torch.optim.Adam, torch.optim.SGD):
        more = {"momentum": 0.9} if cls is torch.optim.SGD else {}
        yield cls, {**more}, {"memory": "channels_last"}
        yield cls, {**more}, {"missing": True}  # a parameter has no gradient now and then
        yield cls, {**more}, {"lr": True}  # a scheduler changes the learning rate
        yield cls, {**more}, {"resumed": True}  # from a state_dict
        yield cls, {**more}, {"closure": True}


def others():
    """What the kernels leave to PyTorch."""
    adam, sgd = torch.optim.Adam, torch.optim.SGD
    for cls in (adam, sgd):
        yield cls, {}, {"dtype": torch.float64}
        if sys.argv[1] != "hybrid":  # narrow.py
            yield cls, {}, {"dtype": torch.bfloat16}
        yield cls, {}, {"dtype": torch.complex64}
        yield cls, {"differentiable": True}, {}
        yield cls, {"lr": torch.tensor(1e-2), "fused": True}, {}
        yield cls, {"fused": True}, {"scaled": True}
        yield cls, {}, {"twice": True}  # a parameter is listed twice
        yield cls, {}, {"alias": True}  # two parameters share their memory
    yield sgd, {"momentum": 0.9}, {"strides": True}
    yield sgd, {"momentum": 0.9, "nesterov": True, "foreach": True}, {}  # writes_gradients


@functools.cache
def drawn(shape, dtype, channels_last, number):
    """Drawn once for all rows: that takes longer than their steps."""
    made = torch.randn(shape, generator=torch.Generator().manual_seed(number)).to(dtype)
    return made.to(memory_format=torch.channels_last) if channels_last else made


def trained(cls, options, do):
    numbers = itertools.count()
    dtype = do.get("dtype", torch.float32)
    shapes = ((4, 3, 5, 6), (33, 7, 2, 2)) if "memory" in do else ((6, 8),) if "strides" in do else SHAPES

    def random(shape):
        return drawn(shape, dtype, "memory" in do, next(numbers))

    parameters = [torch.nn.Parameter(random(shape).clone()) for shape in shapes]
    if options.get("differentiable"):
        parameters = [p.detach().clone().requires_grad_() for p in parameters]
        parameters = [p * 1 for p in parameters]  # no leaves
    if "alias" in do:
        parameters.append(torch.nn.Parameter(parameters[-1].detach()))
    listed = [*parameters, parameters[3]] if "twice" in do else parameters
    optimizer = cls(listed, **{"lr": 1e-2, **options})
    if "scaled" in do:
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(0.0)
    for step in range(STEPS):
        for p in parameters:
            p.grad = 0.1 * random(tuple(p.shape))
            if "strides" in do:
                p.grad = p.grad.t().contiguous().t()
        if "missing" in do and step != 1:
            parameters[step % 3].grad = None
        if "lr" in do:
            optimizer.param_groups[0]["lr"] *= 0.9
        if "resumed" in do and step == 2:
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer = cls(parameters, **{"lr": 1e-2, **options})
            optimizer.load_state_dict(saved)
        versions = [p._version for p in parameters]
        optimizer.step(lambda: torch.tensor(1.0)) if "closure" in do else optimizer.step()
        written = [p._version > before for p, before in zip(parameters, versions)]
    kept = [[*optimizer.state[p].items(), ("gradient", p.grad)] for p in parameters]
    return [p.detach().clone() for p in parameters], kept, written


def same(expected, found):
    (p, kept, written), (q, other, written_too) = expected, found
    if not all(torch.equal(a, b) for a, b in zip(p, q)) or written != written_too:
        return False
    for ours, theirs in zip(kept, other):
        if [key for key, _ in ours] != [key for key, _ in theirs]:
            return False
        for (_, a), (_, b) in zip(ours, theirs):
            if not (a is b is None or a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)):
                return False
    return True


def name_of(cls, options, do):
    return f"{cls.__name__} {options} {do}"


def other_bits(stock):
    """A version of PyTorch that rounds otherwise."""

    @functools.wraps(stock)
    def step(params, *args, **kwargs):
        stock(params, *args, **kwargs)
        for p in params:
            p.mul_(1 + 2**-23)

    return step


def main():
    core.bind()
    found = {"differ": [], "native": [], "kernels": []}
    rows = [(*row, True) for row in cases()] + [(*row, False) for row in others()]
    expected = {}
    for threads in THREADS:  # PyTorch's 16-bit loops round otherwise where their threads' parts meet
        torch.set_num_threads(threads)
        expected[threads] = [trained(cls, options, do) for cls, options, do, _ in rows]
    calls.count(core, "optimizer_adam", "optimizer_sgd")
    if len(sys.argv) > 2:  # of other bits
        module = importlib.import_module("torch.optim.adam")
        module._single_tensor_adam = other_bits(module._single_tensor_adam)
        module._multi_tensor_adam = other_bits(module._multi_tensor_adam)
    kernels.install(sys.argv[1])
    for threads in THREADS:
        torch.set_num_threads(threads)
        for (cls, options, do, able), before in zip(rows, expected[threads]):
            trained(cls, options, do)  # what is tried once is tried here
            calls_before = calls.made
            if not same(before, trained(cls, options, do)):
                found["differ"].append(name_of(cls, options, do))
            if able and calls.made == calls_before:
                found["native"].append(name_of(cls, options, do))
            if not able and calls.made != calls_before:
                found["kernels"].append(name_of(cls, options, do))
    found["rows"] = len(rows)
    print(json.dumps(found))


main()
