"""One rank of a script that does to the parameters of DistributedDataParallel what scripts do, and prints what it sees, for run.py:

    kept_once.py HABIT[,HABIT]... [BACKEND]

Each line has the digest of the parameters. Under Castor each rank tells standard error how many bytes of parameters it has on the host when a habit ends. Ranks
write their lines whole."""
import copy
import io
import os
import sys

import torch
import torch.distributed as dist

from looks import digest, say

RANK = int(os.environ["RANK"])
WIDTH, STEPS = 520, 6  # a matrix of a layer does not lie in a segment with what is small


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm = torch.nn.Embedding(50, WIDTH), torch.nn.LayerNorm(WIDTH)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)])
        self.large = torch.nn.Linear(WIDTH, 10 * WIDTH)  # in a segment of its own; its step is larger than parts are

    def forward(self, tokens):
        x = self.norm(self.embedding(tokens))
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.large(x)


class Habit:
    """What a script does after each step; `model` is the network itself."""

    optimizer = staticmethod(lambda p: torch.optim.AdamW(p, 1e-2))

    def __init__(self, model):
        self.model = model

    def after(self, step, optimizer):
        pass


class nothing(Habit):
    pass


class momentum(Habit):
    optimizer = staticmethod(lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, nesterov=True))


class not_divisible(Habit):
    """Each rank steps everything."""

    def __init__(self, model):
        super().__init__(model)
        self.other = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=1)

    def after(self, step, optimizer):
        if step == 3:
            self.other.step(lambda: sum(p.detach().pow(2).sum() for p in self.model.parameters()))


class written_in_place(Habit):
    def after(self, step, optimizer):
        with torch.no_grad():
            for number, p in enumerate(self.model.parameters()):
                if (number + step) % 3 == 0:
                    p.mul_(0.9)
                elif step == 2:
                    p.data[0].zero_()


class read_by_kernels(Habit):
    def after(self, step, optimizer):
        if RANK == step % 2:
            say("norms", RANK, step, *(f"{p.norm().item():.9g}" for p in self.model.parameters()))


class averaged(Habit):
    def __init__(self, model):
        super().__init__(model)
        self.mean = copy.deepcopy(model)

    def after(self, step, optimizer):
        with torch.no_grad():
            for mean, p in zip(self.mean.parameters(), self.model.parameters()):
                mean.lerp_(p, 0.1)
        say("mean", step, digest(self.mean.parameters()))


class saved_and_loaded(Habit):
    def after(self, step, optimizer):
        if step == 1:
            self.file = io.BytesIO()
            torch.save(self.model.state_dict(), self.file)
        elif step == 3:
            self.file.seek(0)
            self.model.load_state_dict(torch.load(self.file))


class saved_by_rank_0(Habit):
    def after(self, step, optimizer):
        if RANK == 0:
            say("saved", step, digest(torch.load(io.BytesIO(self._saved())).values()))

    def _saved(self):
        file = io.BytesIO()
        torch.save(self.model.state_dict(), file)
        return file.getvalue()


class other_data(Habit):
    def after(self, step, optimizer):
        if step == 2:
            for p in self.model.layers[1].parameters():
                p.data = p.data.clone() * 0.5


class frozen_for_a_while(Habit):
    def after(self, step, optimizer):
        for layer in self.model.layers[:2]:
            for p in layer.parameters():
                if step in (1, 4):
                    p.requires_grad_(step == 4)
        with torch.no_grad():
            self.model.layers[0].weight.add_(0.01)


class EmptiesTheCache:
    def __getstate__(self):
        return "nothing"

    def __setstate__(self, state):
        torch.cuda.empty_cache()


class wrapped_again_by_pickle(Habit):
    """A wrapper is made, and the allocator's cache emptied, while torch.load has memory of homes."""

    def after(self, step, optimizer):
        if step == 2:
            other = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(self.model))
            other.cache = EmptiesTheCache()
            file = io.BytesIO()
            torch.save(other, file)
            file.seek(0)
            again = torch.load(file, weights_only=False)
            again(torch.arange(8, device="cuda")).sum().backward()
            say("again", digest(again.parameters()), digest(p.grad for p in again.parameters()))


class in_a_stream_of_its_own(Habit):
    def __init__(self, model):
        super().__init__(model)
        self.stream = torch.cuda.Stream()

    def after(self, step, optimizer):
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream), torch.no_grad():
            seen = self.model(torch.arange(8, device="cuda")).sum()
        torch.cuda.current_stream().wait_stream(self.stream)
        say("evaluated", step, f"{seen.item():.6g}")


class under_autocast(Habit):
    def after(self, step, optimizer):
        with torch.autocast("cuda", torch.bfloat16), torch.no_grad():
            say("evaluated", step, f"{self.model(torch.arange(8, device='cuda')).float().sum().item():.6g}")


def on_the_host():
    try:
        import castor
    except ImportError:
        return
    found = castor.memory_stats()["parameters"]
    os.write(2, f"rank {RANK} has {found['host']} bytes of parameters on the host, {found['device']} on its device\n".encode())


def train(name):
    torch.manual_seed(1)
    model = Network().cuda()
    habit = globals()[name](model)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=name == "frozen_for_a_while")
    optimizer = habit.optimizer(model.parameters())
    draws = torch.Generator().manual_seed(RANK)
    for step in range(STEPS):
        optimizer.zero_grad()
        wrapped(torch.randint(0, 50, (4, 3), generator=draws).cuda()).pow(2).mean().backward()
        optimizer.step()
        say(name, step, digest(model.parameters()))
        habit.after(step, optimizer)
    say(name, "at the end", digest(model.parameters()))
    on_the_host()


def main():
    torch.set_num_threads(1)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(*sys.argv[2:] or ["nccl"])
    for name in sys.argv[1].split(","):
        train(name)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
