"""Scripts that rearrange the memory of parameters, gradients and optimizer states in the middle of a run, drawn at random.

    rearranged.py --out DIR [--ddp] SEED...

For each seed a small model is trained for a few steps, and between its steps, its backward passes and inside them
something is rearranged. DIR/SEED.RANK.json lists what the script saw: [what, a digest of it], or ["refused", the text].
"""

import argparse
import copy
import gc
import hashlib
import json
import os
import random
import sys

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 6


class Model(torch.nn.Module):
    """A square weight, one whose elements can lie in other orders, small ones, and one that is part of another's memory."""

    def __init__(self, beside):
        super().__init__()
        self.square = torch.nn.Linear(64, 64)
        self.conv = torch.nn.Conv2d(8, 16, 3, padding=1)
        self.out = torch.nn.Linear(64, 32)
        self.beside = torch.nn.Parameter(self.out.weight.detach()[:8]) if beside else None

    def forward(self, x, fail=False):
        x = x.to(self.square.weight.dtype)
        y = torch.tanh(self.square(x))
        z = self.conv(y.view(-1, 8, 4, 2)).mean((1, 2, 3))
        if fail:
            y = Failing.apply(y)
        out = self.out(y) + z[:, None]
        if self.beside is not None:
            out = out + (y @ self.beside.t()).mean(1, keepdim=True)
        return out


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ValueError("the script's own")


class Run:
    def __init__(self, seed, ddp):
        self.draw = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed * 2 + (rank() if ddp else 0))
        torch.manual_seed(seed)
        self.ddp, self.seen, self.kept, self.done = ddp, [], {}, []
        self.adam = self.draw.random() < 0.5
        self.model = Model(beside=self.draw.random() < 0.2)
        self.wrap()
        self.build()

    def wrap(self):
        self.net = DistributedDataParallel(self.model) if self.ddp else self.model

    def wrap_anew(self):
        """After another dtype or other strides: PyTorch's own reducer sums nothing any more, or the wrong elements."""
        if self.ddp:
            for p in self.model.parameters():
                p.grad = None
            with torch.enable_grad():
                self.wrap()

    def build(self):
        parameters = list(self.model.parameters())
        if self.adam:
            self.optimizer = torch.optim.Adam(parameters, lr=0.01)
        else:
            self.optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)

    # ---- what it sees

    def see(self, what, thing):
        if isinstance(thing, torch.Tensor):
            values = thing.detach().contiguous()
            thing = [str(values.dtype), list(values.shape), hashlib.blake2b(
                values.reshape(-1).view(torch.uint8).numpy().tobytes(), digest_size=8).hexdigest()]
        self.seen.append([f"{what} after {', '.join(self.done) or 'nothing'}", thing])

    def see_all(self, step):
        for name, p in self.model.named_parameters():
            self.see(f"step {step}: {name}", p)
            for key, value in sorted(self.optimizer.state.get(p, {}).items()):
                self.see(f"step {step}: {key} of {name}", value if isinstance(value, torch.Tensor) else str(value))
        for name, thing in sorted(self.kept.items()):
            if isinstance(thing, dict):
                for number, state in sorted(thing["state"].items()):
                    for key, value in sorted(state.items()):
                        self.see(f"step {step}: {key} of parameter {number} in {name}", torch.as_tensor(value or 0.0)
                                 if not isinstance(value, torch.Tensor) else value)
            else:
                self.see(f"step {step}: {name}", torch.as_tensor(thing))

    def see_gradients(self, step):
        for name, p in self.model.named_parameters():
            self.see(f"step {step}: gradient of {name}", "none" if p.grad is None else p.grad)

    # ---- a run

    def go(self):
        for step in range(STEPS):
            if self.draw.random() < 0.6:
                self.do(step, BETWEEN)
            passes = 2 if self.draw.random() < 0.3 else 1
            for number in range(passes):
                if not self.ddp and self.draw.random() < 0.1:
                    self.fail(step)
                loss = (self.net(self.inputs(64)) - self.inputs(32)).pow(2).mean()
                loss.backward()
                self.see(f"step {step}: loss", loss)
                self.see_gradients(step)
                if number + 1 < passes and self.draw.random() < 0.4:
                    self.do(step, BETWEEN)
            if self.draw.random() < 0.3:
                self.do(step, OF_GRADIENTS)
            if self.draw.random() < 0.2:
                self.do(step, BETWEEN)
            self.optimizer.step()
            if self.draw.random() < 0.8:
                self.optimizer.zero_grad(set_to_none=self.draw.random() < 0.7)
            self.see_all(step)

    def inputs(self, size):
        return torch.randn(8, size, generator=self.generator).to(self.model.square.weight.dtype)

    def do(self, step, kinds):
        kind = self.draw.choice(kinds)
        self.done.append(f"{kind.__name__}@{step}")
        if kind not in WITH_AUTOGRAD:
            with torch.no_grad():
                kind(self)
        else:
            kind(self)

    def fail(self, step):
        """A backward raises, the script goes on."""
        self.done.append(f"exception@{step}")
        try:
            (self.net(self.inputs(64), fail=True) - self.inputs(32)).pow(2).mean().backward()
        except ValueError:
            pass
        self.see_gradients(step)

    def a_parameter(self):
        return self.draw.choice([p for p in self.model.parameters()])

    def a_state(self):
        """One of an optimizer's states, or None."""
        state = self.optimizer.state.get(self.a_parameter(), {})
        values = [value for key, value in sorted(state.items()) if isinstance(value, torch.Tensor) and value.dim()]
        return self.draw.choice(values) if values else None


# ---- between steps


def half_and_back(run):
    run.model.half().float()
    run.wrap_anew()


def double_and_back(run):
    run.model.double().float()
    run.wrap_anew()


def other_strides(run):
    p = run.model.square.weight
    p.data = p.data.t().contiguous().t()
    run.wrap_anew()


def channels_last(run):
    run.model.to(memory_format=torch.channels_last)
    run.wrap_anew()


def contiguous(run):
    run.model.to(memory_format=torch.contiguous_format)
    run.wrap_anew()


def one_flat_tensor(run):
    parameters = list(run.model.parameters())
    flat = run.kept["flat"] = torch.cat([p.data.reshape(-1) for p in parameters])
    start = 0
    for p in parameters:
        p.data = flat[start : start + p.numel()].view(p.shape)
        start += p.numel()
    run.wrap_anew()


def edit_what_is_kept(run):
    for name, kept in sorted(run.kept.items()):
        if isinstance(kept, torch.Tensor):
            kept.mul_(0.5)
        elif isinstance(kept, numpy.ndarray):
            kept *= 0.5


def from_vector(run):
    vector = run.kept["vector"] = torch.nn.utils.parameters_to_vector(run.model.parameters())
    torch.nn.utils.vector_to_parameters(vector, run.model.parameters())
    run.wrap_anew()


def loaded_tensor(run):
    p = run.a_parameter()
    p.data = run.kept["loaded"] = p.data * 0.75


def dropped_tensor(run):
    p = run.a_parameter()
    p.data = p.data.clamp(-0.1, 0.1)


def numpy_memory(run):
    p = run.a_parameter()
    array = run.kept["array"] = p.detach().numpy().copy(order="K")
    p.data = torch.from_numpy(array)


def loaded_by_rank_0(run):
    """The others have the same values where they were."""
    p = run.a_parameter()
    if rank() == 0:
        p.data = p.data.clone()


def changed_by_each(run):
    """As ranks diverge in plain PyTorch, they do here."""
    p = run.a_parameter()
    p.data = p.data + (rank() if run.ddp else 1) * 0.125


def swapped_memory(run):
    first, second = run.model.square.weight, run.model.square.weight.detach().clone()
    first.data, run.kept["swapped"] = second, first.data


def swapped_back(run):
    if isinstance(run.kept.get("swapped"), torch.Tensor):
        run.model.square.weight.data = run.kept.pop("swapped")


def copied_model(run):
    run.kept["copy"] = torch.nn.utils.parameters_to_vector(copy.deepcopy(run.model).parameters())


def load_model(run):
    run.model.load_state_dict({name: t * 0.9 for name, t in run.model.state_dict().items()})


def assign_and_new_optimizer(run):
    if run.ddp:
        return
    values = {name: t.clone() for name, t in run.model.state_dict().items()}
    run.model.load_state_dict(values, assign=True)
    run.model.requires_grad_(True)
    run.build()


def keep_states(run):
    run.kept["states"] = run.optimizer.state_dict()


def load_states(run):
    run.optimizer.load_state_dict(copy.deepcopy(run.kept.get("states", run.optimizer.state_dict())))


def load_kept_states(run):
    """The optimizer and the script hold the same tensors afterwards."""
    if "states" in run.kept:
        run.optimizer.load_state_dict(run.kept["states"])


def zero_states(run):
    for state in run.optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor) and value.dim():
                value.data = torch.zeros_like(value)


def kept_state(run):
    value = run.a_state()
    if value is not None:
        value.data = run.kept["state"] = value.data * 0.5


def numpy_state(run):
    value = run.a_state()
    if value is not None:
        array = run.kept["state array"] = value.detach().numpy().copy(order="K")
        value.data = torch.from_numpy(array)


def states_of_rank_0(run):
    if rank() == 0 or not run.ddp:
        value = run.a_state()
        if value is not None:
            value.data = value.data.clone()
    else:
        run.a_state()


def clear_states(run):
    run.optimizer.state.clear()


def new_optimizer(run):
    run.build()


def new_optimizer_with_states(run):
    states = run.kept["states"] = run.optimizer.state_dict()
    run.build()
    run.optimizer.load_state_dict(states)


def new_model(run):
    """The parameters of before go, those of the new model take their values."""
    values, states = copy.deepcopy(run.model.state_dict()), run.optimizer.state_dict()
    del run.optimizer, run.net
    run.model = Model(run.model.beside is not None)
    gc.collect()
    run.model.load_state_dict(values)
    run.wrap()
    run.build()
    run.optimizer.load_state_dict(states)
    run.kept["states"] = states


def wrap_again(run):
    run.wrap()


def double_and_wrap_again(run):
    run.model.double()
    run.wrap()
    run.build()


def float_and_wrap_again(run):
    run.model.float()
    run.wrap()
    run.build()


def swapped_on_conversion(run):
    """PyTorch's own reducer holds the parameters, and lets none be swapped."""
    if run.ddp:
        return
    torch.__future__.set_swap_module_params_on_conversion(True)
    run.model.half().float()
    torch.__future__.set_swap_module_params_on_conversion(False)


def model_of_rank_0(run):
    """The others go on with other parameters."""
    if not run.ddp:
        return
    run.model.zero_grad()
    states, models = copy.deepcopy(run.optimizer.state_dict()), [run.model]
    dist.broadcast_object_list(models)
    run.model = models[0]
    run.wrap()
    run.build()
    run.optimizer.load_state_dict(states)


def tie(run):
    run.model.square.bias.data = run.model.square.weight.data[0]


def frozen_and_thawed(run):
    p = run.a_parameter()
    p.requires_grad_(not p.requires_grad)
    p.requires_grad_(True)


# ---- between backward and step


def transposed_gradient(run):
    p = run.model.square.weight
    if p.grad is not None:
        p.grad = p.grad.t()


def cloned_gradient(run):
    p = run.a_parameter()
    if p.grad is not None:
        p.grad = p.grad.clone()


def replaced_gradient_data(run):
    p = run.a_parameter()
    if p.grad is not None:
        p.grad.data = p.grad.data * 0.5


def kept_gradient(run):
    p = run.a_parameter()
    if p.grad is not None:
        run.kept["gradient"] = p.grad


def numpy_gradient(run):
    p = run.a_parameter()
    if p.grad is not None:
        array = run.kept["gradient array"] = p.grad.numpy().copy(order="K")
        p.grad = torch.from_numpy(array)


def no_gradient(run):
    run.a_parameter().grad = None


def zeroed_gradient(run):
    p = run.a_parameter()
    if p.grad is not None:
        p.grad.zero_()


def scaled_gradient(run):
    p = run.a_parameter()
    if p.grad is not None:
        p.grad.mul_(0.5)


BETWEEN = [
    half_and_back, double_and_back, other_strides, channels_last, contiguous, one_flat_tensor, edit_what_is_kept, from_vector,
    loaded_tensor, dropped_tensor, numpy_memory, loaded_by_rank_0, changed_by_each, swapped_memory, swapped_back, copied_model,
    load_model, assign_and_new_optimizer, keep_states, load_states, load_kept_states, zero_states, kept_state, numpy_state,
    states_of_rank_0, clear_states, new_optimizer, new_optimizer_with_states, new_model, wrap_again, tie, frozen_and_thawed,
    swapped_on_conversion, model_of_rank_0,
    double_and_wrap_again, float_and_wrap_again,
]
OF_GRADIENTS = [
    transposed_gradient, cloned_gradient, replaced_gradient_data, kept_gradient, numpy_gradient, no_gradient, zeroed_gradient,
    scaled_gradient,
]
WITH_AUTOGRAD = (new_model, wrap_again, double_and_wrap_again, float_and_wrap_again, frozen_and_thawed, assign_and_new_optimizer,
                 from_vector, swapped_on_conversion, model_of_rank_0)


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("seeds", nargs="+", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.ddp:
        dist.init_process_group("gloo")
    for seed in arguments.seeds:
        print(f"seed {seed}", flush=True)
        run = Run(seed, arguments.ddp)
        try:
            run.go()
        except RuntimeError as error:
            run.seen.append(["raised", f"{type(error).__name__} after {', '.join(run.done)}: {error}"])
        name = f"{seed}.{rank() if arguments.ddp else os.environ.get('RANK_OF_RECORD', 0)}.json"
        with open(os.path.join(arguments.out, name), "w") as file:
            json.dump(run.seen, file)
        if run.seen and run.seen[-1][0] == "raised" and arguments.ddp:
            sys.exit(f"seed {seed}: {run.seen[-1][1]}")
        del run


if __name__ == "__main__":
    main()
