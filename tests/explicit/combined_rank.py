"""Combinations of a plugin, a precision and habits of scripts on each rank, or the same written out in plain PyTorch: see test_combined.py.

    combined_rank.py PLUGIN CASE...

PLUGIN and the words of a CASE: as in booster_rank.py, and those below. Of each case: what a rank saw, and the bits of parameters and states
at its end."""
import contextlib
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F

import booster_rank
from booster_rank import STEPS, batch, bits, states, whole
from found import end, found, raised


class Reference(booster_rank.Plain):
    """Plain PyTorch without DistributedDataParallel: gradients are averaged here, so that they may come from parameters that are frozen and
    unfrozen at any time."""

    def __init__(self, words, device, autocast):
        super().__init__(words, device, autocast, False)
        self.ddp, self.syncs, self.skipped = self.model, True, False

    @contextlib.contextmanager
    def no_sync(self):
        self.syncs = False
        yield
        self.syncs = True

    def backward(self, loss):
        super().backward(loss)
        if not self.masters and self.syncs:
            self.average(self.model.parameters())

    def backward_by_grad(self, out, grad):
        self.backward((out * grad).sum())

    @staticmethod
    def average(parameters):
        for p in parameters:
            if p.grad is not None:
                every = [torch.empty_like(p.grad) for _ in range(dist.get_world_size())]
                dist.all_gather(every, p.grad)
                p.grad = sum(every[1:], every[0]) / len(every)

    def call(self, x):
        if self.masters:
            for buffer in self.narrow.buffers():  # rank 0's, as in DistributedDataParallel
                dist.broadcast(buffer, 0)
            return self.narrow(x).float()
        with torch.autocast(self.device.type, dtype=self.half, enabled=self.autocast):
            out = self.model(x)
        return out.float()

    def loss(self, out, y):
        with torch.autocast(self.device.type, dtype=self.half, enabled=self.autocast):
            return F.mse_loss(out, y)

    def before_step(self):
        """With masters: from the narrow model's to floats, whatever is frozen now."""
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        if not self.masters:
            self.scaler.unscale_(self.optimizer) if self.autocast else None
            return
        for p, n in zip(self.model.parameters(), self.narrow.parameters()):
            if n.grad is None:
                continue
            grad = n.grad if self.half is torch.bfloat16 else n.grad.float() / self.scale
            every = [torch.empty_like(grad) for _ in range(dist.get_world_size())]
            dist.all_gather(every, grad * (1 / len(every)))
            p.grad = sum(every[1:], every[0]).float()
            n.grad = None
        self.skipped = self.half is torch.float16 and not all(bool(p.grad.isfinite().all()) for p in self.model.parameters() if p.grad is not None)
        self.scale *= 0.5 if self.skipped else 1

    def clip_value(self, value):
        torch.nn.utils.clip_grad_value_(self.parameters, value)
        if self.masters and self.half is torch.bfloat16:
            for p in self.parameters:
                p.grad = p.grad.to(self.half).float()

    def zero_grad(self):
        self.optimizer.zero_grad()
        for p in self.narrow.parameters() if self.masters else ():
            p.grad = None

    def norm(self):
        return torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])

    def step(self, closure=None):
        if closure is not None:
            self.optimizer.step(closure)
        elif not self.skipped:
            super().step()
        if closure is not None and self.masters:
            self.publish()

    def publish(self):
        with torch.no_grad():
            for p, n in zip(self.model.parameters(), self.narrow.parameters()):
                n.copy_(p)

    def freeze(self, of, trains):
        for model in (self.model, *([self.narrow] if self.masters else ())):
            getattr(model, of).requires_grad_(trains)

    def keep(self):
        import copy

        self.kept = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict(), self.scheduler.state_dict()))

    def back(self):
        for part, kept in zip((self.model, self.optimizer, self.scheduler), self.kept, strict=True):
            part.load_state_dict(kept)
        if self.masters:
            self.publish()

    def save_in_the_middle(self, ranks):
        return True

    def refuses_to_step(self):
        return True


class Boosted(booster_rank.Boosted):
    def __init__(self, name, words, device):
        more = {"max_norm": 0.5} if "maxnorm" in words else {}
        make = booster_rank.make_plugin
        booster_rank.make_plugin = lambda *args: make(*args, **more)
        try:
            super().__init__(name, words, device)
        finally:
            booster_rank.make_plugin = make

    def backward_by_grad(self, out, grad):
        self.optimizer.backward_by_grad(out, grad)

    def call(self, x):
        return self.model(x).float()

    def loss(self, out, y):
        return self.criterion(out, y)

    def clip_value(self, value):
        self.optimizer.clip_grad_by_value(value)

    def zero_grad(self):
        self.optimizer.zero_grad()

    def norm(self):
        return self.optimizer.get_grad_norm()

    def step(self, closure=None):
        self.optimizer.step() if closure is None else self.optimizer.step(closure)

    def freeze(self, of, trains):
        getattr(self.whole(), of).requires_grad_(trains)

    def keep(self):
        self.folder = _folder()
        self.save(self.folder, "kept", ())

    def back(self):
        self.load(self.folder, "kept", ())

    def save_in_the_middle(self, ranks):
        """Whether the file that these ranks save has what the model has now."""
        path = os.path.join(_folder(), "middle.bin")
        if dist.get_rank() in ranks:
            self.booster.save_model(self.model, path)
            self.booster.save_optimizer(self.optimizer, path + ".optimizer.bin")
        mine = {key: whole(value) for key, value in self.whole().state_dict().items()}
        dist.barrier()
        saved = torch.load(path, weights_only=True)
        return all(torch.equal(saved[key].to(value.dtype), value) for key, value in mine.items())

    def refuses_to_step(self):
        return "another optimizer's loss, with another loss scale" in raised(RuntimeError, self.optimizer.step)


def _folder():
    """A directory for all ranks."""
    told = [tempfile.mkdtemp(dir=os.environ["EXPLICIT_TEST_FOUND"]) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(told, 0)
    return told[0]


def data(step, run):
    return batch(step, *run.part, run.device)


def finish(run, words, clips=True):
    """The step after the last backward."""
    run.before_step()
    seen = []
    if "value" in words:
        run.clip_value(0.01)
    if "clip" in words or "maxnorm" in words and isinstance(run, Reference):
        norm = float(run.clip())
        seen += [norm] if "clip" in words else []
    if "norm" in words:
        seen.append(float(run.norm()))
    run.step()
    run.scheduler.step()
    return seen


def train(run, words):
    """Words: micro (two backward passes for a step, the first in no_sync unless `synced`), value, clip, maxnorm (the plugin clips), norm; overflow (a
    loss of rank 1 is infinite at the third step), middle (saved between two backward passes; alone:
    by rank 0), alternate (parts are frozen in turn), thaws (one part is frozen at the
    begin, and trains alone from the third step on), grows (a group is
    added), later (a scheduler of the boosted optimizer), returns (to what was saved two steps before), by_grad, whole (model.zero_grad())."""
    seen, parts = [], 2 if "micro" in words else 1
    if "later" in words:
        run.scheduler = torch.optim.lr_scheduler.ExponentialLR(run.optimizer, 0.5)
    for step in range(STEPS):
        if "alternate" in words and step:
            run.freeze("first", step == 2)
            run.freeze("last", step != 2)
        if "thaws" in words and step == 2:
            for part in ("first", "norm", "last"):
                run.freeze(part, part == "first")
        if "grows" in words and step == 2:
            run.optimizer.add_param_group({"params": list(run.model.parameters() if isinstance(run, Reference) else run.whole().parameters())[-2:], "lr": 0.02})
        if "returns" in words and step == 1:
            run.keep()
        if "returns" in words and step == 3:
            run.back()
        for number in range(parts):
            with run.no_sync() if number < parts - 1 and "synced" not in words else contextlib.nullcontext():
                x, y = data(step * parts + number, run)
                if "by_grad" in words:
                    out = run.call(x)
                    run.backward_by_grad(out, torch.full_like(out, 1e-3) * y)
                    continue
                loss = run.loss(run.call(x), y) / parts
                seen.append(loss.item())
                run.backward(loss * float("inf") if "overflow" in words and step == 2 and dist.get_rank() == 1 else loss)
            if "middle" in words and number == 0:
                seen.append(run.save_in_the_middle([0] if "alone" in words else range(dist.get_world_size())))
        norms = finish(run, words)
        seen += [] if "overflow" in words and step == 2 else norms
        run.zero_grad()
        if "whole" in words or "grows" in words or "alternate" in words or "thaws" in words:
            run.whole().zero_grad()
    return seen


def closures(run, words):
    seen = []
    for step in range(STEPS):
        def closure():
            run.zero_grad()
            loss = run.loss(run.call(data(step, run)[0]), data(step, run)[1])
            run.backward(loss)
            run.before_step()
            if "maxnorm" in words and isinstance(run, Reference):
                run.clip()
            seen.append(loss.item())
            return loss

        run.step(closure)
        run.scheduler.step()
    return seen


def pair(one, two, words):
    """Two models, two optimizers and one Booster: the first one makes what the second one judges."""
    seen = []
    for step in range(STEPS):
        x, y = data(step, one)
        two.zero_grad()
        real, made = two.call(y).mean(), two.call(one.call(x).detach()).mean()
        two.backward((made - real) * (float("inf") if "overflow" in words and step == 1 and dist.get_rank() == 1 else 1.0))
        two.before_step()
        two.step()
        one.zero_grad()
        loss = -two.call(one.call(x)).mean()
        one.backward(loss)
        if "overflow" in words and step == 1:  # the scales differ now
            seen.append(two.refuses_to_step())
        one.before_step()
        one.step()
        seen += [real.item(), made.item(), loss.item()]
    return seen


def report(case, run, seen):
    model = {key: whole(value) for key, value in run.state().items()}
    found(case, {"part": run.part[0], "losses": seen, "norms": [], "names": list(model), "model": bits(model.values()), "optimizer": bits(states(run.optimizer)),
                 "numbers": [float(t.double().sum()) for t in model.values()]})


def main():
    name, *cases = sys.argv[1:]
    device = torch.device("cpu")
    dist.init_process_group("gloo")
    for case in cases:
        words = case.split("+")

        def make():
            return Reference(words, device, name == "plain-autocast") if name.startswith(booster_rank.PLAIN) else Boosted(name, words, device)

        run, other = make(), None
        if "pair" in words:
            other = make()
            seen = pair(run, other, words)
            report(f"{case} of the second", other, seen)
        else:
            seen = (closures if "closure" in words else train)(run, words)
        report(case, run, seen)
        del run, other, make
    end()


if __name__ == "__main__":
    main()
