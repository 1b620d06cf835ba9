"""Steps of CASTOR_OPTIMIZER=hybrid on 16-bit and float parameters beside the same steps in double precision. Prints what is beyond the bound
of docs/optimizers.md, as JSON: a parameter is its exact value rounded once, to its type, plus 2**-21 of what it was made of, signs left
out: the parameter, and the changes by its gradient and by the mean of those before; a float state likewise."""
import copy
import itertools
import json

import torch

import calls
from castor.agent import core
from castor.agent.optim import kernels

SHAPES = ((1,), (37,), (1000, 33), (0,), (70001,))
STEPS = 4
PART = 2.0**-21
STATES = {"exp_avg": 1, "exp_avg_sq": 2, "max_exp_avg_sq": 2, "momentum_buffer": 1}  # powers of a gradient


def rows():
    """(class, options, type)."""
    types = (torch.bfloat16, torch.float16, torch.float32)
    forms = ({}, {"foreach": True}, {"fused": True})
    for cls, form, dtype in itertools.product((torch.optim.Adam, torch.optim.AdamW), forms, types):
        for amsgrad, decay in ((False, 0), (False, 0.1), (True, 0.1)):
            yield cls, {"amsgrad": amsgrad, "weight_decay": decay, **form}, dtype
    for form, dtype in itertools.product(forms, types):
        for momentum, nesterov in ((0, False), (0.9, False), (0.9, True)):
            yield torch.optim.SGD, {"momentum": momentum, "nesterov": nesterov, "weight_decay": 0.1, **form}, dtype


def half_unit(value, dtype):
    """Half of what the last place of a number of the type counts."""
    info = torch.finfo(dtype)
    exponent = torch.frexp(value.abs().clamp(min=info.tiny))[1] - 1
    return 0.5 * torch.ldexp(torch.full_like(value, info.eps), exponent)


def changes(state, grad, mean, number):
    """What a step of rate 0.01 takes off a parameter by its gradient and by the mean (or momentum), if they had one sign."""
    if "exp_avg_sq" not in state:
        return 0.01 * (2 * grad + mean)
    square = state.get("max_exp_avg_sq", state["exp_avg_sq"])
    return 0.01 / (1 - 0.9**number) * (0.1 * grad + mean) / (square.sqrt() / (1 - 0.999**number) ** 0.5 + 1e-8)


def beyond(cls, options, dtype):
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]
    optimizer = cls(parameters, **{"lr": 1e-2, **options})
    for step in range(STEPS):
        for p in parameters:
            p.grad = torch.randn(p.shape, generator=generator).to(dtype)
        if step == 3:  # what load_state_dict rounds, a step goes on from
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        exact = [torch.nn.Parameter(p.detach().double()) for p in parameters]
        reference = cls(exact, **{"lr": 1e-2, **options, "foreach": False, "fused": False})
        for p, q in zip(parameters, exact):
            q.grad = p.grad.double()
            if p in optimizer.state:
                reference.state[q] = {key: value.double() if isinstance(value, torch.Tensor) and key != "step" else copy.deepcopy(value)
                                      for key, value in optimizer.state[p].items()}
        before = [p.detach().double().clone() for p in parameters]
        means = [reference.state[q].get("exp_avg", reference.state[q].get("momentum_buffer", torch.zeros(()))).abs() for q in exact]
        optimizer.step()
        reference.step()
        for p, q, old, mean in zip(parameters, exact, before, means):
            made_of = old.abs() + changes(reference.state[q], q.grad.abs() + 0.1 * old.abs(), mean, step + 1)
            if ((p.detach().double() - q.detach()).abs() > half_unit(q.detach(), dtype) + PART * made_of).any():
                return f"parameter in step {step}"
            for key, power in STATES.items():
                if (state := optimizer.state[p].get(key)) is None:
                    continue
                if state.dtype is not torch.float32:
                    return f"{key} is {state.dtype}"
                right, made_of = reference.state[q][key], (q.grad.abs() + 0.1 * old.abs()) ** power + mean * (power == 1)
                if ((state.double() - right).abs() > PART * (right.abs() + made_of)).any():
                    return f"{key} in step {step}"
    return None


def main():
    core.bind()
    torch.set_num_threads(1)
    kernels.install("hybrid")
    calls.count(core, "optimizer_adam", "optimizer_sgd")
    found = {"beyond": [], "native": [], "rows": 0}
    for cls, options, dtype in rows():
        name, calls_before = f"{cls.__name__} {options} {dtype}", calls.made
        what = beyond(cls, options, dtype)
        if what:
            found["beyond"].append(f"{name}: {what}")
        if calls.made - calls_before < STEPS:
            found["native"].append(name)
        found["rows"] += 1
    print(json.dumps(found))


main()
