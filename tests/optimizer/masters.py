"""Steps float masters with 16-bit gradients and publishes them in 16 bits (castor.agent.optim.kernels.publishing), beside torch.optim on
float tensors: gradients widened and scaled before, parameters rounded after. Prints what differs in a bit, as JSON.

    masters.py auto|hybrid|native [OTHER BITS]
"""
import functools
import itertools
import json
import sys

import torch

import calls
from castor.agent import core
from castor.agent.optim import kernels

NARROW = (torch.bfloat16, torch.float16)
SHAPES = ((1,), (37,), (1000, 33), (0,), (7,), (70001,))
STEPS = 4


def rows():
    """(class, options)."""
    forms = ({}, {"foreach": True}, {"fused": True})
    for cls, form in itertools.product((torch.optim.Adam, torch.optim.AdamW), forms):
        for amsgrad, maximize in itertools.product((False, True), (False, True)):
            yield cls, {"amsgrad": amsgrad, "maximize": maximize, "weight_decay": 0.1, **form}
    for form in forms:
        for momentum, nesterov in ((0, False), (0.9, False), (0.9, True)):
            yield torch.optim.SGD, {"momentum": momentum, "nesterov": nesterov, "weight_decay": 0.1, **form}
    yield torch.optim.Adam, {"lr": torch.tensor(1e-2), "fused": True}  # left to torch.optim


@functools.cache
def numbers(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@functools.cache
def gradients(dtypes, step):
    """With what rarely occurs among them. Drawn once for all rows: that takes longer than their steps."""
    generator, drawn = torch.Generator().manual_seed(step), []
    odd = torch.tensor([0.0, -0.0, 6e-8, -1e-7, 6e4, -3e4, float("inf")])
    for shape, dtype in zip(SHAPES, dtypes):
        values = torch.randn(shape, generator=generator)
        where = torch.rand(shape, generator=generator) < 0.05
        values = torch.where(where, odd[torch.randint(0, len(odd), shape, generator=generator)], values)
        drawn.append(values.to(dtype))
    return drawn


def trained(cls, options, grad_types, working_types, factor, ours):
    masters = [torch.nn.Parameter(numbers(shape, place).clone()) for place, shape in enumerate(SHAPES)]
    working = [p.detach().to(dtype) for p, dtype in zip(masters, working_types)]
    optimizer = cls(masters, **{"lr": 1e-2, **options})
    for step in range(STEPS):
        for number, (p, w, grad) in enumerate(zip(masters, working, gradients(tuple(grad_types), step))):
            p.grad = None
            if step == 1 and number == 2:
                continue
            if ours:
                p.grad_dtype, p.grad = grad.dtype, grad.clone()
            else:
                p.grad = grad.float() * factor
        if ours:
            kept = [None if p.grad is None else p.grad.clone() for p in masters]
            published = {p.data_ptr(): w for p, w in zip(masters, working) if w.dtype is not torch.float32 and p.numel()}
            with kernels.publishing(published, factor):
                optimizer.step()
            if not all(a is b is None or same(a, b.grad) for a, b in zip(kept, masters)):
                return ["the gradients were written"]
        else:
            optimizer.step()
            for p, w in zip(masters, working):
                if p.grad is not None:
                    w.copy_(p.detach())
    states = [x for p in masters for x in optimizer.state[p].values()]
    return [p.detach() for p in masters], [w for w in working if w.dtype is not torch.float32], states


def same(a, b):
    if a is None or b is None:
        return a is b
    bits = {4: torch.int32, 2: torch.int16}[a.element_size()]
    return a.dtype == b.dtype and not ((a.view(bits) != b.view(bits)) & ~(a.isnan() & b.isnan())).any()


def main():
    core.bind()
    mixed = [*NARROW, torch.float32, *NARROW, torch.float32]
    types = [([t] * 6, [t] * 6) for t in NARROW] + [(mixed, mixed[::-1])]
    cases = list(itertools.product(rows(), types, (1.0, 2.0**-16, 1 / 3)))
    if len(sys.argv) > 2:
        cases = [case for case in cases if "fused" not in case[0][1]]
        module = sys.modules["torch.optim.adam"]
        for name in ("_single_tensor_adam", "_multi_tensor_adam"):
            setattr(module, name, other_bits(getattr(module, name)))
    expected = [trained(*row, *dtypes, factor, False) for row, dtypes, factor in cases]
    calls.count(core, "optimizer_adam", "optimizer_sgd")
    kernels.install(sys.argv[1])
    differ = []
    for (row, dtypes, factor), before in zip(cases, expected):
        after = trained(*row, *dtypes, factor, True)
        if len(after) != 3 or not all(same(a, b) for x, y in zip(before, after) for a, b in zip(x, y)):
            differ.append(f"{row[0].__name__} {row[1]} {dtypes[0][:2]} {factor}")
    print(json.dumps({"differ": differ, "calls": calls.made, "rows": len(cases)}))


def other_bits(stock):
    """A version of PyTorch that rounds otherwise."""

    def step(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, grad_scale, found_inf, **options):
        stock(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, grad_scale, found_inf, **options)
        for p in params:
            p.mul_(1 + 2**-23)

    step.__signature__ = __import__("inspect").signature(stock)
    return step


main()
