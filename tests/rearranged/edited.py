"""Trains with edits of parameters, groups, states and gradients at random moments, and writes what it ends with.

    edited.py --out DIR [--ddp] [--parts K] SEED...

With --parts K each batch comes in K parts, each of which is a step() of the script: what a run under CASTOR_ACCUMULATE=K sees. Without
it an edit that came between the parts of a batch comes before the batch. DIR/SEED.RANK.json has {"edits": what was done and when,
"final": numbers by name} or {"edits": ..., "raised": the message}."""
import argparse
import json
import os
import random

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

BATCHES, SAMPLES, PARTS = 5, 12, 3
START, BETWEEN, BEFORE_STEP = "at the start of a batch", "between its parts", "before its step"


class Trial:
    """One run: a model of which some parameters have pages of their own, and others share them."""

    def __init__(self, seed, ddp):
        torch.manual_seed(seed)
        self.random, self.ddp = random.Random(seed), ddp
        self.model = nn.Sequential(nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        self.clips = self.random.random() < 0.3
        self.by_module = self.random.random() < 0.3
        kind = self.random.randrange(3)
        self.build = [lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), lambda p: torch.optim.AdamW(p, 1e-2),
                      lambda p: torch.optim.RMSprop(p, 1e-2)][kind]
        first, *others = [list(m.parameters()) for m in self.model if isinstance(m, nn.Linear)]
        self.optimizer = self.build([{"params": first}, {"params": sum(others, [])}])
        self.wrap()

    def wrap(self):
        self.net = DistributedDataParallel(self.model, find_unused_parameters=True) if self.ddp else self.model

    def some(self):
        return self.random.choice([p for group in self.optimizer.param_groups for p in group["params"]])

    # ---- the edits

    def learning_rate(self):
        self.random.choice(self.optimizer.param_groups)["lr"] *= 0.5

    def decay(self):
        self.random.choice(self.optimizer.param_groups)["weight_decay"] = 0.1

    def states_scaled(self):
        for state in self.optimizer.state.values():
            for key, value in state.items():
                if key != "step" and torch.is_tensor(value):
                    value.mul_(0.5)

    def states_dropped(self):
        self.optimizer.state.clear()

    def states_loaded(self):
        self.optimizer.load_state_dict(self.optimizer.state_dict())

    def value_scaled(self):
        self.some().data.mul_(0.9)

    def value_written(self):
        with torch.no_grad():
            p = self.some()
            p.reshape(-1)[: 2].copy_(torch.ones(2))

    def value_moved(self):
        p = self.some()
        p.data = p.data * 0.9

    def value_kept(self):
        self.some().data.mul_(1.0)

    def model_loaded(self):
        self.model.load_state_dict({k: v.clone() for k, v in self.model.state_dict().items()})

    def replaced(self):
        old = self.some()
        new = nn.Parameter(old.detach().clone(), requires_grad=old.requires_grad)
        for module in self.model:
            for name, p in list(module.named_parameters(recurse=False)):
                if p is old:
                    setattr(module, name, new)
        for group in self.optimizer.param_groups:
            group["params"] = [new if p is old else p for p in group["params"]]
        if old in self.optimizer.state:
            self.optimizer.state[new] = self.optimizer.state.pop(old)
        self.wrap()

    def regrouped(self):
        p = self.some()
        self.taken(p)
        self.optimizer.add_param_group({"params": [p], "lr": 1e-3})

    def taken(self, p=None):
        p = self.some() if p is None else p
        for group in self.optimizer.param_groups:
            group["params"] = [q for q in group["params"] if q is not p]

    def given_back(self):
        had = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        without = [p for p in self.model.parameters() if id(p) not in had]
        if without:
            self.optimizer.add_param_group({"params": without})

    def frozen(self):
        self.some().requires_grad_(False)

    def thawed(self):
        self.model.requires_grad_(True)
        self.wrap()

    def gradient_scaled(self):
        for p in self.model.parameters():
            if p.grad is not None:
                p.grad.data.mul_(0.5)

    def gradient_dropped(self):
        self.some().grad = None

    def gradient_zeroed(self):
        p = self.some()
        if p.grad is not None:
            p.grad.zero_()

    def gradient_put(self):
        p = self.some()
        p.grad = torch.ones_like(p)

    def another_optimizer(self):
        self.optimizer = self.build([p for group in self.optimizer.param_groups for p in group["params"]])

    def wrapped_again(self):
        self.wrap()

    EDITS = [learning_rate, decay, states_scaled, states_dropped, states_loaded, value_scaled, value_written, value_moved, value_kept, model_loaded,
             replaced, regrouped, taken, given_back, frozen, thawed, gradient_scaled, gradient_dropped, gradient_zeroed, gradient_put,
             another_optimizer, wrapped_again]

    # ---- the loop

    def plan(self):
        """(batch, part, moment): the edits at that moment. Drawn alike whatever the number of parts."""
        plan, said = {}, []
        for _ in range(self.random.randint(1, 3)):
            moment, edit = self.random.choice([START, BETWEEN, BETWEEN, BEFORE_STEP]), self.random.choice(self.EDITS)
            batch, part, late = self.random.randrange(1, BATCHES), self.random.randrange(1, PARTS), self.random.random() < 0.5
            said.append([edit.__name__, moment, batch])
            place = {START: (batch, 0, "forward"), BEFORE_STEP: (batch, PARTS - 1, "step"),
                     BETWEEN: (batch, part - 1, "step") if late else (batch, part, "forward")}[moment]
            plan.setdefault(place, []).append((edit, moment, self.random.getrandbits(32)))
        return plan, said

    def at(self, plan, place):
        for edit, _, seed in plan.get(place, ()):
            self.random.seed(seed)  # which parameter it takes
            edit(self)

    def train(self, parts):
        plan, said = self.plan()
        if parts == 1:  # between the parts of a batch: before the batch
            whole = {}
            for (batch, part, moment), edits in sorted(plan.items()):
                for edit in edits:
                    place = (batch, 0, "step" if edit[1] == BEFORE_STEP else "forward")
                    whole.setdefault(place, []).append(edit)
            plan = whole
        yield said
        rank, world = (dist.get_rank(), dist.get_world_size()) if self.ddp else (0, 1)
        generator = torch.Generator().manual_seed(7)
        x, y = torch.randn(world * BATCHES * SAMPLES, 6, generator=generator).double(), torch.randint(0, 3, (world * BATCHES * SAMPLES,), generator=generator)
        own = slice(rank * BATCHES * SAMPLES, (rank + 1) * BATCHES * SAMPLES)
        for number, (x, y) in enumerate(DataLoader(TensorDataset(x[own], y[own]), batch_size=SAMPLES // parts)):
            batch, part = divmod(number, parts)
            self.at(plan, (batch, part, "forward"))
            (self.net if self.by_module else self.optimizer).zero_grad()
            nn.functional.cross_entropy(self.net(x), y).backward()
            if self.clips:
                nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            self.at(plan, (batch, part, "step"))
            self.optimizer.step()
        found = {name: value.detach() for name, value in self.model.state_dict().items()}
        for number, p in enumerate(self.model.parameters()):
            found[f"gradient {number}"] = torch.zeros(()) if p.grad is None else p.grad
            for key, value in sorted(self.optimizer.state.get(p, {}).items()):
                if torch.is_tensor(value):
                    found[f"state {number} {key}"] = value
        yield {name: value.double().reshape(-1).tolist() for name, value in found.items()}


def run(seed, ddp, parts):
    running = Trial(seed, ddp).train(parts)
    seen = {"edits": next(running)}
    try:
        seen["final"] = next(running)
    except Exception as error:
        seen["raised"] = f"{type(error).__name__}: {error}"
    return seen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("seeds", type=int, nargs="+")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.ddp:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if arguments.ddp else int(os.environ.get("CASTOR_RANK", "0"))
    for seed in arguments.seeds:
        seen = run(seed, arguments.ddp, arguments.parts)
        with open(os.path.join(arguments.out, f"{seed}.{rank}.json"), "w") as file:
            json.dump(seen, file)
    if arguments.ddp:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
