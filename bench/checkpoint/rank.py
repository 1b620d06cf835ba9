"""One process that saves, loads and trains with each system in turn: rank.py OUTPUT FOLDER MIB ROUNDS STEPS BATCH"""
import ctypes
import json
import mmap
import os
import shutil
import sys
import threading
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from castor.checkpoint_io import _writer
from safetensors.torch import load_file, save_file

output, folder = sys.argv[1:3]
mib, rounds, steps, batch = map(int, sys.argv[3:])
WIDTH, SAVED_AT = 2048, 3
PIECE = 8 << 20
warnings.filterwarnings("ignore", message="Detected an existing checkpoint")
dist.init_process_group("gloo")  # DCP's async_save wants one


def build():
    """Parameters, gradients' buffers and both moments: a layer has 16 MiB of each."""
    torch.manual_seed(1)
    layers = max(1, mib // (3 * 16))
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    optimizer = torch.optim.Adam(model.parameters())
    return model, optimizer


model, optimizer = build()


def step():
    begin = time.perf_counter()
    optimizer.zero_grad()
    model(torch.ones(batch, WIDTH)).square().mean().backward()
    optimizer.step()
    return time.perf_counter() - begin


def saved():
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def tensors():
    """The same as one dictionary of tensors."""
    found = dict(model.state_dict())
    for number, state in optimizer.state_dict()["state"].items():
        found.update({f"{number}.{key}": value for key, value in state.items()})
    return found


step()
BYTES = sum(t.nbytes for t in tensors().values())


def path(name):
    return os.path.join(folder, name)


def sync(*names):
    """Of files and directories, and what lies in them: a save counts when it is on disk."""
    for name in names:
        for one in [name, *(os.path.join(name, n) for n in (os.listdir(name) if os.path.isdir(name) else ()))]:
            fd = os.open(one, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)


def forget(name):
    """Its pages leave the page cache."""
    for one in [name] if os.path.isfile(name) else [os.path.join(name, n) for n in os.listdir(name)]:
        fd = os.open(one, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def job(name, form, background=False):
    one = _writer.Job(background=background)
    if form == "torch":
        one.add_torch(path(name), saved())
    else:
        one.add_safetensors(path(name), tensors())
    one.commit()


def disk_write():
    buffer = mmap.mmap(-1, PIECE)
    buffer.write(os.urandom(PIECE))
    fd = os.open(path("disk"), os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
    for at in range(0, BYTES, PIECE):
        os.pwrite(fd, buffer, at)
    os.fsync(fd)
    os.close(fd)


def disk_read():
    buffer = mmap.mmap(-1, PIECE)
    fd = os.open(path("disk"), os.O_RDONLY | os.O_DIRECT)
    for at in range(0, BYTES, PIECE):
        os.preadv(fd, [buffer], at)
    os.close(fd)


def dcp_load():
    into = saved()
    dcp.load(into, checkpoint_id=path("dcp"))


SAVES = {
    "disk, O_DIRECT": disk_write,
    "torch.save": lambda: (torch.save(saved(), path("torch.pt")), sync(path("torch.pt"))),
    "Castor, torch.save's form": lambda: job("castor.pt", "torch"),
    "safetensors": lambda: (save_file(tensors(), path("safe.safetensors")), sync(path("safe.safetensors"))),
    "Castor, safetensors": lambda: job("castor.safetensors", "safetensors"),
    "DCP": lambda: (dcp.save(saved(), checkpoint_id=path("dcp")), sync(path("dcp"))),
}
LOADS = {
    "disk, O_DIRECT": (disk_read, "disk"),
    "torch.load": (lambda: torch.load(path("torch.pt")), "torch.pt"),
    "torch.load of Castor's": (lambda: torch.load(path("castor.pt")), "castor.pt"),
    "safetensors": (lambda: load_file(path("safe.safetensors")), "safe.safetensors"),
    "safetensors of Castor's": (lambda: load_file(path("castor.safetensors")), "castor.safetensors"),
    "DCP": (dcp_load, "dcp"),
}


class Peak:
    """The most anonymous memory of the process above what it had, looked at every 2 ms."""

    def __enter__(self):
        self.before, self.most, self.ended = self.now(), 0, threading.Event()
        self.thread = threading.Thread(target=self._look)
        self.thread.start()
        return self

    @staticmethod
    def now():
        with open("/proc/self/status", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) << 10

    def _look(self):
        while not self.ended.wait(0.002):
            self.most = max(self.most, self.now() - self.before)

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


def timed(call):
    with Peak() as peak:
        begin = time.perf_counter()
        call()
        seconds = time.perf_counter() - begin
    return {"seconds": seconds, "peak": peak.most}


def dcp_async():
    return dcp.async_save(saved(), checkpoint_id=path("dcp-async")).result


def castor_async(name, form):
    def save():
        job(name, form, background=True)
        return _writer.wait

    return save


def nothing():
    return lambda: None


ASYNC = {
    "no save": nothing,
    "DCP, async_save": dcp_async,
    "Castor, torch.save's form": lambda: castor_async("async.pt", "torch")(),
    "Castor, safetensors": lambda: castor_async("async.safetensors", "safetensors")(),
}


def training(save):
    """Seconds of the call, and of each step; when the save was done."""
    times, call, done = [], None, []
    with Peak() as peak:
        for number in range(steps):
            if number == SAVED_AT:
                begin = time.perf_counter()
                wait = save()
                call = time.perf_counter() - begin
                waiter = threading.Thread(target=lambda: (wait(), done.append(time.perf_counter() - begin)))
                waiter.start()
            times.append(step())
        waiter.join()
    return {"call": call, "steps": times, "done": done[0], "peak": peak.most}


def copies():
    info = _writer.core.CheckpointInfo()
    _writer.core.checkpoint_get(ctypes.byref(info))
    return {name: getattr(info, name) for name, _ in info._fields_}


results = {"bytes": BYTES, "save": {}, "load": {}, "async": {}}
for number in range(-1, rounds):  # one to warm up, and to make the files that others replace
    order = 1 if number % 2 else -1
    for name, call in list(SAVES.items())[::order]:
        sample = timed(call)
        if number >= 0:
            results["save"].setdefault(name, []).append(sample)
    for name, (call, file) in list(LOADS.items())[::order]:
        forget(path(file))
        sample = timed(call)
        if number >= 0:
            results["load"].setdefault(name, []).append(sample)
    for name, save in list(ASYNC.items())[::order]:
        before = copies()
        sample = training(save)
        sample["copied"] = copies()["copied_later_bytes"] - before["copied_later_bytes"]
        if number >= 0:
            results["async"].setdefault(name, []).append(sample)
        shutil.rmtree(path("dcp-async"), ignore_errors=True)
if dist.get_rank() == 0:
    with open(output, "w", encoding="ascii") as file:
        json.dump(results, file)
dist.destroy_process_group()
