"""One process that writes files in the ways that scripts have, and reads them back: tables, pictures, folders, locks, children."""

import csv
import fcntl
import io
import json
import logging
import mmap
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time

import numpy
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader, TensorDataset

import record
from model import CLASSES, FEATURES, Classifier


def samples(count=16):
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(count, FEATURES, generator=generator), torch.randint(0, CLASSES, (count,), generator=generator))


class Training:
    """A few steps, so that the ranks of a job are ranks."""

    def __init__(self, log):
        self.log = log
        self.model = Classifier()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def steps(self):
        for number, (x, y) in enumerate(DataLoader(samples(), 4, shuffle=True)):
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            self.log.step(loss, say=False)
            yield number, loss.item()


def tree(folder):
    """Its files and folders, as a walk tells, but for the record."""
    found = (os.path.relpath(os.path.join(base, name), folder) for base, folders, files in os.walk(folder) for name in folders + files)
    return sorted(name for name in found if not name.startswith("record"))


@record.case
def metrics_as_json(log):
    """One file that is read, extended and written anew."""
    path = log.path("metrics.json")
    for number, loss in Training(log).steps():
        metrics = {}
        if os.path.exists(path):
            with open(path) as file:
                metrics = json.load(file)
        metrics[f"loss{number}"] = loss
        with open(path, "w") as file:
            json.dump(metrics, file, indent=1)
        log.note("steps", len(metrics))


@record.case
def rows_once(log):
    """Rows that are appended, with a header where the file is new."""
    path = log.path("summary.csv")
    for number, loss in Training(log).steps():
        fresh = not os.path.exists(path)
        with open(path, "a", newline="") as file:
            table = csv.writer(file)
            if fresh:
                table.writerow(["step", "loss"])
            table.writerow([number, f"{loss:.4f}"])
    with open(path) as file:
        log.note("rows", len(list(csv.reader(file))))


@record.case
def checkpoints_rotated(log):
    """Folders of which the last two are kept; the others are removed with all that is in them."""
    training = Training(log)
    for number, _ in training.steps():
        folder = log.path(f"checkpoint-{number}")
        os.makedirs(os.path.join(folder, "parts"))
        torch.save(training.model.state_dict(), os.path.join(folder, "model.pt"))
        with open(os.path.join(folder, "parts", "state.json"), "w") as file:
            json.dump({"step": number}, file)
        for old in sorted(name for name in os.listdir(log.path("")) if name.startswith("checkpoint-"))[:-2]:
            shutil.rmtree(log.path(old))
        log.note("kept", tree(log.path("")))
    log.note("loaded", torch.load(os.path.join(folder, "model.pt")))


@record.case
def folders_that_must_be_new(log):
    os.mkdir(log.path("run"))
    for number, _ in Training(log).steps():
        os.makedirs(log.path(f"run/{number}"), exist_ok=False)
        with open(log.path(f"run/{number}/name"), "x") as file:
            file.write("new\n")
        try:
            open(log.path(f"run/{number}/name"), "x").close()
        except FileExistsError:
            log.note("there", number)
    os.rename(log.path("run"), log.path("run.last"))
    os.mkdir(log.path("run"))
    log.note("tree", tree(log.path("")))


@record.case
def by_hand(log):
    """Bytes that other functions made."""
    training = Training(log)
    for number, _ in training.steps():
        buffer = io.BytesIO()
        torch.save({"step": number, "model": training.model.state_dict()}, buffer)
        with open(log.path("model.pt"), "wb") as file:
            file.write(buffer.getvalue())
        numpy.save(log.path("head.npy"), training.model.head.weight.detach().numpy())
        with open(log.path("model.pt"), "rb") as file:
            log.note("step", torch.load(file)["step"])
        log.note("head", torch.from_numpy(numpy.load(log.path("head.npy"))))
        with open(log.path("stream.pt"), "wb") as file:
            torch.save(training.model.state_dict(), file)
    log.note("stream", torch.load(log.path("stream.pt")))


@record.case
def replaced_whole(log):
    """Written under a name of its own and put in place."""
    for number, loss in Training(log).steps():
        file = tempfile.NamedTemporaryFile("w", dir=log.path(""), prefix=".part", delete=False)
        with file:
            json.dump({"step": number, "loss": round(loss, 3)}, file)
        os.replace(file.name, log.path("state.json"))
        with open(log.path("state.json")) as file:
            log.note("step", json.load(file)["step"])
    log.note("tree", tree(log.path("")))


@record.case
def logged(log):
    handler = logging.FileHandler(log.path("train.log"))
    logger = logging.getLogger("writes")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    for number, loss in Training(log).steps():
        logger.info("step %d loss %.4f", number, loss)
    handler.close()
    logger.removeHandler(handler)
    with open(log.path("train.log")) as file:
        log.note("lines", len(file.readlines()))


@record.case
def by_children(log):
    """Other programs, a shell and forked workers write."""
    program = "import sys; open(sys.argv[1], 'a').write(sys.argv[2] + '\\n')"
    for number, _ in Training(log).steps():
        subprocess.run([sys.executable, "-c", program, log.path("python.txt"), str(number)], check=True)
        subprocess.run(f"echo {number} >> shell.txt; cp shell.txt copy-{number}.txt; test {number} = 0 || rm copy-$(({number} - 1)).txt",
                       shell=True, check=True, cwd=log.path(""))
    child = os.fork()
    if not child:
        with open(log.path("shell.txt"), "a") as file:
            file.write("forked\n")
        os._exit(0)
    os.waitpid(child, 0)
    for name in ("python.txt", "shell.txt"):
        with open(log.path(name)) as file:
            log.note(name, file.read())
    log.note("tree", tree(log.path("")))


class Cached(torch.utils.data.Dataset):
    """Keeps what it has made in files."""

    def __init__(self, folder):
        self.folder, self.data = folder, samples()

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        path = os.path.join(self.folder, f"{index}.npy")
        if not os.path.exists(path):
            numpy.save(path, self.data[index][0].numpy())
        return torch.from_numpy(numpy.load(path)), self.data[index][1]


@record.case
def cached_by_workers(log):
    os.mkdir(log.path("cache"))
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for x, y in DataLoader(Cached(log.path("cache")), 4, shuffle=True, num_workers=1):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            log.step(loss, say=False)


@record.case
def mapped(log):
    numpy.zeros(64).tofile(log.path("mapped.raw"))
    values = numpy.memmap(log.path("mapped.raw"), dtype="float64", mode="r+", shape=(64,))
    for number, _ in Training(log).steps():
        values[number] += number + 1
        values.flush()
    del values
    with open(log.path("mapped.raw"), "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[-1:] = b"\x01"
    log.note("values", torch.from_numpy(numpy.fromfile(log.path("mapped.raw"))[:8]))


@record.case
def temporary(log):
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as unnamed:
        for number, _ in Training(log).steps():
            with open(os.path.join(folder, f"{number}.txt"), "w") as file:
                file.write(str(number))
            unnamed.write(b"x")
        shutil.copytree(folder, log.path("copied"))
        shutil.move(os.path.join(folder, "0.txt"), log.path("moved.txt"))
        unnamed.seek(0)
        log.note("unnamed", unnamed.read().decode())
    log.note("gone", os.path.exists(folder))
    log.note("tree", tree(log.path("")))


@record.case
def named_by_itself(log):
    """Checkpoints in folders that each process names: by the time, by its number, by chance."""
    training, read = Training(log), []
    with tempfile.TemporaryDirectory() as temporary:
        for number, _ in training.steps():
            for folder in (log.path(f"run-{time.time_ns()}"), log.path(f"pid-{os.getpid()}-{number}"), os.path.join(temporary, str(number))):
                os.makedirs(folder)
                torch.save(training.model.state_dict(), os.path.join(folder, "model.pt"))
                save_file(training.model.state_dict(), os.path.join(folder, "model.safetensors"))
                states = torch.load(os.path.join(folder, "model.pt")), load_file(os.path.join(folder, "model.safetensors"))
                read += [float(sum(value.double().sum() for value in state.values())) for state in states]
                shutil.rmtree(folder)
    log.note("read", read)
    log.note("tree", tree(log.path("")))


@record.case
def locked(log):
    """A counter behind a lock, as caches have them, and a data base."""
    for _ in Training(log).steps():
        with open(log.path("counter.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            count = 0
            if os.path.exists(log.path("counter.txt")):
                with open(log.path("counter.txt")) as file:
                    count = int(file.read())
            with open(log.path("counter.txt"), "w") as file:
                file.write(str(count + 1))
    with open(log.path("counter.txt")) as file:
        log.note("counted", file.read())
    base = sqlite3.connect(log.path("base.db"))
    with base:
        base.execute("create table steps (number integer)")
        base.executemany("insert into steps values (?)", [(1,), (2,)])
    log.note("sum", base.execute("select sum(number) from steps").fetchone()[0])
    base.close()


@record.case
def working_directory(log):
    before = os.getcwd()
    os.mkdir(log.path("inside"))
    os.chdir(log.path("inside"))
    try:
        for number, _ in Training(log).steps():
            with open("here.txt", "a") as file:
                file.write(f"{number}\n")
        os.symlink("here.txt", "link.txt")
        os.link("here.txt", "same.txt")
        os.chmod("here.txt", 0o640)
        os.utime("here.txt", (1, 2))
        found = os.stat("link.txt")
        log.note("here", [os.path.basename(os.getcwd()), sorted(os.listdir(".")), found.st_size, found.st_mode, int(found.st_mtime)])
        log.note("real", os.path.relpath(os.path.realpath("link.txt"), os.path.realpath(before)))
        log.note("from a folder", sorted(os.listdir("../inside")))
    finally:
        os.chdir(before)


@record.case
def checkpoint_in_parts(log):
    """torch.distributed.checkpoint in one process."""
    from torch.distributed import checkpoint

    training = Training(log)
    for _ in training.steps():
        pass
    checkpoint.save({"model": training.model.state_dict()}, checkpoint_id=log.path("parts"), no_dist=True)
    state = {"model": Classifier().state_dict()}
    checkpoint.load(state, checkpoint_id=log.path("parts"), no_dist=True)
    log.note("loaded", state)


@record.case
def pictures(log):
    from PIL import Image

    for number, _ in Training(log).steps():
        Image.fromarray(numpy.full((32, 32, 3), 8 * number, dtype=numpy.uint8)).save(log.path("grid.png"))
        with Image.open(log.path("grid.png")) as picture:
            log.note("picture", [*picture.size, int(numpy.asarray(picture).max())])


if __name__ == "__main__":
    record.main()
