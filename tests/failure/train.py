"""Trains a small network, and fails on one rank, as the arguments say:

    train.py ddp|single HOW [--rank R] [--step S] [--steps N] [--out DIR]

A script of many ranks (ddp, under torchrun) or of one process (single). It saves a checkpoint after each step, as a
temporary file that is renamed, and goes on from it when it is there. What each rank sees is printed: its losses, and the moment before its failure."""
import argparse
import builtins
import os
import resource
import signal
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("kind", choices=("ddp", "single"))
parser.add_argument("how")
parser.add_argument("--rank", type=int, default=1)
parser.add_argument("--step", type=int, default=2)
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--out", default="out")
args = parser.parse_args()
distributed = args.kind == "ddp"
chosen = None  # whether this rank is the one to fail


def choose():
    # A script of one process does not ask which rank it is; a test must know.
    global rank, chosen
    rank = int(os.environ["RANK" if distributed else "CASTOR_RANK"])
    chosen = rank == args.rank and (args.how != "restart" or os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")


MEMORY_BYTES = 16 << 30  # address space, all of it
choose()
if args.how == "memory" and chosen:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.RLIM_INFINITY))

import torch  # noqa: E402 - within the limit
from torch import nn  # noqa: E402

choose()  # ranks may have been forked from one import


def say(*words):
    sys.stdout.write(" ".join(map(str, ("rank", rank, *words))) + "\n")
    sys.stdout.flush()


def at(how, step=None):
    """Whether it is here and now that this rank fails; says so."""
    if not chosen or args.how != how or step not in (None, args.step):
        return False
    say("fails now, at", time.time())
    return True


class Raising(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, step):
        ctx.step = step
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if at("function", ctx.step):
            raise ValueError("made by the function's backward")
        return grad, None


class Network(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Linear(32, width), nn.Linear(width, 8)
        self.step = -1
        if args.how == "order" and chosen:
            self._modules["first"] = self._modules.pop("first")  # behind the second

    def forward(self, x):
        if at("forward", self.step):
            raise ValueError("made by forward")
        return self.second(torch.relu(Raising.apply(self.first(x), self.step)))


def raising_hook(grad):
    at("hook")
    raise ValueError("made by a hook in backward")


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 16 * args.steps

    def __getitem__(self, index):
        if args.how == "worker" and chosen and index >= 16 * args.step:
            raise ValueError("made by the worker")
        if args.how == "worker killed" and chosen and index >= 16 * args.step:
            os.kill(os.getpid(), signal.SIGKILL)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(32, generator=generator), index % 8


class Optimizer(torch.optim.AdamW):
    def step(self, closure=None):
        if at("step", network.step):
            raise ValueError("made by the optimizer's step")
        return super().step(closure)


def save(path):
    state = {"model": network.state_dict(), "optimizer": optimizer.state_dict(), "step": network.step + 1}
    torch.save(state, path + ".part")
    if distributed or rank == 0:
        os.replace(path + ".part", path)


say("process", os.getpid())
if at("early"):
    sys.exit(0)
torch.manual_seed(0)
torch.set_num_threads(1)
if distributed:
    import torch.distributed as dist

    dist.init_process_group("gloo")
width = 4096 if args.how != "width" or not chosen else 2048
network = Network(width)
if args.how == "more" and chosen:
    network.third = nn.Linear(8, 8)
model = nn.parallel.DistributedDataParallel(network) if distributed else network
if at("address space"):
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    # Room for all but a chunk, where the job asks for large ones; else not even for the store's control block.
    room = 1 << 30 if os.environ.get("CASTOR_CHUNK_SIZE") else 8 << 20
    resource.setrlimit(resource.RLIMIT_AS, (used + room, resource.RLIM_INFINITY))
optimizer = Optimizer(model.parameters(), lr=1e-3 if args.how != "lr" or not chosen else 2e-3)
if args.how == "groups":
    for number in range(1, 12):
        rate = 2e-3 if number == 11 and chosen else 1e-3
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(8))], "lr": rate})
samples = Samples()
sampler = torch.utils.data.DistributedSampler(samples, shuffle=False) if distributed else None
workers = 2 if args.how.startswith("worker") else 0
loader = torch.utils.data.DataLoader(samples, 8 if distributed else 16, sampler=sampler, num_workers=workers)
path = os.path.join(args.out, "last.pt")
first = 0
if os.path.exists(path):
    saved = torch.load(path, weights_only=True)
    network.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]
    say("resumes at", first)
for step, (x, y) in enumerate(loader):
    if step < first:
        continue
    network.step = step
    if at("leave", step) or at("exit", step):
        sys.exit(3 if args.how == "exit" else 0)
    if at("killed", step) or at("restart", step):
        os.kill(os.getpid(), signal.SIGKILL)
    if at("stopped", step):
        os.kill(os.getpid(), signal.SIGSTOP)
    if at("memory", step):
        torch.empty(MEMORY_BYTES // 4)
    if at("cgroup", step):
        with open(os.path.join(os.environ["FAILURE_CGROUP"], "cgroup.procs"), "w") as file:
            file.write(str(os.getpid()))
        held = b"x" * (1 << 29)
    if at("filled", step):
        with open(os.path.join(os.environ["CASTOR_OFFLOAD_DIR"], "filler"), "wb", buffering=0) as file:
            try:
                while file.write(b"x" * 4096):
                    pass
            except OSError as error:
                say(error.strerror)
    if at("segv", step):
        os.kill(os.getpid(), signal.SIGSEGV)
    if args.how == "long":
        time.sleep(0.5)
    if args.how == "collective":
        if at("collective", step):
            raise ValueError("made before a collective of the script")
        dist.all_reduce(torch.ones(1))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    if args.how == "hook" and chosen and step == args.step:
        network.second.weight.register_hook(raising_hook)
    loss.backward()
    optimizer.step()
    say("step", step, "loss", repr(loss.item()))
    if at("best", step):
        torch.save(network.state_dict(), os.path.join(args.out, "best.pt"))
    if rank == 0 or not distributed:
        save(path)
    if args.how == "uneven" and chosen and step == args.step:
        at("uneven")
        break
if args.how == "kept":
    builtins.kept = network, optimizer  # as long as anything: other modules are empty when they die
say("done")
if args.how == "at once":
    # The thread that carries this rank's collective has its turn late: all that the job runs shares one processor with it.
    for task in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(task), {min(os.sched_getaffinity(0))})
        if int(task) != os.getpid():
            os.setpriority(os.PRIO_PROCESS, int(task), 19)
    dist.all_reduce(torch.ones(4))
elif distributed:
    dist.destroy_process_group()
