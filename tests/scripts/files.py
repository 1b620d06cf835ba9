"""One process that writes checkpoints, logs and tables, and resumes."""

import copy
import csv
import json
import os
import shutil
import threading
from concurrent import futures

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import record
from model import CLASSES, FEATURES, Classifier


def samples(count=24):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, FEATURES, generator=generator)
    return TensorDataset(x, torch.randint(0, CLASSES, (count,), generator=generator))


def train_step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


@record.case
def checkpoints(log):
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, (x, y) in enumerate(DataLoader(samples(), 8, shuffle=True)):
        loss = train_step(model, optimizer, x, y)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, log.path(f"step{step}.pt"))
        log.step(loss, model, optimizer)
    torch.save(model, log.path("module.pt"))
    torch.save(model.head.weight, log.path("parameter.pt"))


@record.case
def saved_on_threads(log):
    """Copies are written while the training goes on; one at a time is waited for, the others at the end."""
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    threads = []
    with futures.ThreadPoolExecutor(1) as pool:
        for step, (x, y) in enumerate(DataLoader(samples(), 4, shuffle=True)):
            loss = train_step(model, optimizer, x, y)
            pool.submit(torch.save, {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, log.path("last.pt")).result()
            threads.append(threading.Thread(target=torch.save, args=(copy.deepcopy(model.state_dict()), log.path(f"step{step}.pt"))))
            threads[-1].start()
            log.note("read", torch.load(log.path("last.pt"))["model"])
            log.step(loss, model, optimizer)
        torch.save(model.state_dict(), log.path("whole.pt"))
    for thread in threads:
        thread.join()
    log.note("third", torch.load(log.path("step2.pt")))


@record.case
def best_of_all(log):
    """Overwrites one file whenever the validation improves, and loads it at the end."""
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    best = float("inf")
    for epoch in range(3):
        for x, y in DataLoader(samples(), 8, shuffle=True):
            train_step(model, optimizer, x, y)
        with torch.no_grad():
            score = sum(F.cross_entropy(model(x), y).item() for x, y in DataLoader(samples(16), 8))
        log.note("validation loss", score)
        if score < best:
            best = score
            torch.save(model.state_dict(), log.path("best.pt"))
    model.load_state_dict(torch.load(log.path("best.pt")))
    log.step(None, model)


@record.case
def checkpoints_renamed_and_removed(log):
    """Written under another name and renamed, read at once; the one before is kept, and numbered ones are removed."""
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    part, last = log.path("last.part"), log.path("last.pt")
    for step, (x, y) in enumerate(DataLoader(samples(), 4, shuffle=True)):
        loss = train_step(model, optimizer, x, y)
        log.step(loss, model, optimizer)
        if os.path.exists(last):
            os.replace(last, log.path("before.pt"))
        torch.save({"step": step, "model": model.state_dict()}, part)
        os.rename(part, last)
        log.note("read", torch.load(last)["step"])
        torch.save(model.state_dict(), log.path(f"step{step}.pt"))
        if step >= 2:
            os.remove(log.path(f"step{step - 2}.pt"))
    os.unlink(log.path("step4.pt"))
    for _ in range(3):  # nothing but files keeps the ranks together
        torch.save(model.state_dict(), part)
        os.remove(part)


@record.case
def best_is_a_copy(log):
    """Each checkpoint is written, the best one copied, over the one before, and read at once."""
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (x, y) in enumerate(DataLoader(samples(), 4, shuffle=True)):
        loss = train_step(model, optimizer, x, y)
        torch.save({"step": step, "model": model.state_dict(), "more": torch.ones(1 << 20)}, log.path("last.pt"))
        shutil.copy(log.path("last.pt"), log.path("best.pt"))
        read = torch.load(log.path("best.pt"))
        log.note("read", [read["step"], read["more"].sum().item()])
        shutil.copyfile(log.path("best.pt"), log.path("another.pt"))
        log.note("read again", torch.load(log.path("another.pt"))["step"])
        log.step(loss, model, optimizer)


@record.case
def log_as_text(log):
    """A log file that stays open."""
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with open(log.path("log.txt"), "w") as file:
        for step, (x, y) in enumerate(DataLoader(samples(), 8, shuffle=True)):
            loss = train_step(model, optimizer, x, y)
            file.write(f"{step} {loss.item():.4f}\n")
            log.step(loss)
    with open(log.path("result.json"), "w") as file:
        json.dump({"loss": round(loss.item(), 4)}, file)


@record.case
def table_appended_to(log):
    """A line more in a file at every step, opened each time."""
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (x, y) in enumerate(DataLoader(samples(), 8, shuffle=True)):
        loss = train_step(model, optimizer, x, y)
        with open(log.path("table.csv"), "a", newline="") as file:
            csv.writer(file).writerow([step, f"{loss.item():.4f}"])
        log.step(loss)


@record.case
def safetensors(log):
    from safetensors.torch import load_file, save_file

    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(samples(), 8, shuffle=True):
        loss = train_step(model, optimizer, x, y)
    save_file(model.state_dict(), log.path("model.safetensors"))
    model.load_state_dict(load_file(log.path("model.safetensors")))
    log.step(loss, model, optimizer)


def scalars_in(folder):
    """How many scalars TensorBoard shows of a folder, whoever wrote them."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    files = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    return sum(len(event.summary.value) for file in files for event in EventFileLoader(file).Load())


@record.case
def tensorboard(log):
    """Writers of TensorBoard made before and after the optimizer: as many scalars as one process writes."""
    from torch.utils.tensorboard import SummaryWriter

    model = Classifier()
    before = SummaryWriter("board/before")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    after = SummaryWriter("board/after")
    for step, (x, y) in enumerate(DataLoader(samples(), 8, shuffle=True)):
        loss = train_step(model, optimizer, x, y)
        before.add_scalar("loss", loss.item(), step)
        after.add_scalar("loss", loss.item(), step)
        log.step(loss)
    before.close()
    after.close()
    torch.save(model.state_dict(), log.path("last.pt"))
    log.note("scalars", [scalars_in("board/before"), scalars_in("board/after")])


@record.case
def arrays(log):
    import numpy

    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(samples(), 8, shuffle=True):
        loss = train_step(model, optimizer, x, y)
    numpy.save(log.path("head.npy"), model.head.weight.detach().numpy())
    log.step(loss, model, optimizer)


@record.case
def resumed(log):
    """Goes on from a checkpoint where there is one, as a second run in the same folder does."""
    path = log.path("resume.pt")
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    epoch = 0
    if os.path.exists(path):
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        epoch = saved["epoch"]
        torch.set_rng_state(saved["random"])
        log.print(f"resumed at epoch {epoch}")
    for x, y in DataLoader(samples(), 8, shuffle=True):
        loss = train_step(model, optimizer, x, y)
        log.step(loss, model, optimizer)
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": epoch + 1,
        "random": torch.get_rng_state(),
    }
    torch.save(state, path)


if __name__ == "__main__":
    record.main()
