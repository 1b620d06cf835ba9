"""Writes down what a training script sees, step by step, so that two runs can be compared.

A script that has several short cases declares each as a function that takes the recorder:

    @record.case
    def clips(log):
        ...
        log.step(loss=loss, model=model, optimizer=optimizer)

    if __name__ == "__main__":
        record.main()

and is started with `--out DIR [--case NAME,NAME]`. A script that is one run makes its own `Recorder(DIR)`.
Each rank writes one file, `DIR/CASE/record/rankR.pkl`. Large tensors are kept as a checksum of all bytes, sums of every
block and a sample, because a run may look at many gigabytes.
"""

import argparse
import ctypes
import hashlib
import os
import pickle
import platform
import random
import sys
import zlib

import numpy
import torch
import torch.distributed as dist

ON_DEVICE = "RANK_ON_DEVICE" in os.environ  # tests/device/rank_on_device.py: a framework's script asks for devices
WHOLE = 4096  # elements up to which a tensor is kept whole
BLOCK = 1024  # elements per sum beyond that


def rank():
    """The rank of this process, for the name of its record. One of several processes that run a single-process script
    cannot know it from PyTorch: there the environment tells."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return max(int(os.environ.get("CASTOR_RANK", "0")), 0)


def write_for_all(path, data):
    """Writes a file for those who started this process, whoever stands in front of libc's functions: one of several
    processes that run a single-process script has files of its own."""
    open_at, make_at = {"x86_64": (257, 258), "aarch64": (56, 34)}[platform.machine()]
    call = ctypes.CDLL(None, use_errno=True).syscall
    here = ctypes.c_int(-100)  # AT_FDCWD
    parts = os.path.abspath(path).split("/")
    for count in range(2, len(parts)):
        call(make_at, here, os.fsencode("/".join(parts[:count])), 0o777)
    file = call(open_at, here, os.fsencode("/".join(parts)), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    if file < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    with open(file, "wb") as out:
        out.write(data)


def frozen_tensor(tensor):
    tensor = tensor.detach()
    if tensor.is_sparse:
        tensor = tensor.coalesce()
        return {"sparse": [frozen(tensor.indices()), frozen(tensor.values())]}
    entry = {"dtype": str(tensor.dtype), "shape": tuple(tensor.shape), "stride": tensor.stride()}
    flat = tensor.cpu().contiguous().reshape(-1)
    seen = flat.view(torch.uint8).numpy()
    wide = torch.float64 if flat.dtype.is_floating_point else torch.int64
    if flat.numel() <= WHOLE:
        values = flat.to(wide).numpy()
        entry["hash"] = hashlib.sha1(seen).hexdigest()
        entry["values"] = values.astype(numpy.float32) if tensor.dtype in (torch.float32, torch.bfloat16) else values.copy()
        return entry
    entry["sums"], entry["absolute"] = sums_of(flat, wide)
    entry["sample"] = flat[:: max(flat.numel() // 2039, 1)].to(wide, copy=True).numpy()
    # A digest of all bytes takes longer than what a small model computes. A difference that leaves all sums as they are, to the bit, passes this
    # checksum in one of 2**32 cases.
    entry["hash"] = f"{zlib.crc32(seen):08x}" + hashlib.sha1(entry["sums"].tobytes() + entry["absolute"].tobytes()).hexdigest()
    return entry


def sums_of(flat, wide):
    """The sum of each block, and that of its absolute values; by pieces that a cache holds."""
    room, sums, absolute = torch.empty(min(flat.numel(), 64 * BLOCK), dtype=wide), [], []
    for piece in flat.split(room.numel()):
        values = room[: piece.numel()].copy_(piece).numpy()
        starts = numpy.arange(0, values.size, BLOCK)
        sums.append(numpy.add.reduceat(values, starts))
        absolute.append(numpy.add.reduceat(numpy.abs(values, out=values), starts))
    return numpy.concatenate(sums), numpy.concatenate(absolute)


def frozen(thing):
    """A copy without tensors: nothing of the script's memory stays referenced."""
    if isinstance(thing, torch.Tensor) and thing.is_complex():
        return {"complex": frozen(torch.view_as_real(thing.detach().resolve_conj()))}
    if isinstance(thing, torch.Tensor):
        return {"tensor": frozen_tensor(thing)}
    if isinstance(thing, dict):
        return {str(key): frozen(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [frozen(value) for value in thing]
    if isinstance(thing, (int, float, str, bytes, bool, type(None))):
        return thing
    if isinstance(thing, numpy.generic):
        return thing.item()
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def gradients_of(model):
    return {name: p.grad for name, p in model.named_parameters(remove_duplicate=False)}


def states_of(optimizer):
    """The optimizer's own dictionary, by group and position, not the copy that state_dict() makes."""
    groups = []
    for group in optimizer.param_groups:
        settings = {key: value for key, value in group.items() if key != "params"}
        states = [optimizer.state[p] if p in optimizer.state else None for p in group["params"]]
        groups.append({"settings": settings, "states": states})
    return groups


class Recorder:
    def __init__(self, directory, case=""):
        self.directory = os.path.join(directory, case)  # where the script may write files of its own
        self.rank = rank()
        self.events = []
        os.makedirs(os.path.join(self.directory, "record"), exist_ok=True)

    def path(self, name):
        return os.path.join(self.directory, name)

    def print(self, *words):
        if self.rank == 0 or not dist.is_initialized():
            print(*words, flush=True)

    def note(self, name, value):
        self.events.append((name, frozen(value)))

    def gradients(self, model, name="gradients"):
        self.note(name, gradients_of(model))

    def parameters(self, model, name="parameters"):
        self.note(name, dict(model.named_parameters(remove_duplicate=False)))

    def step(self, loss=None, model=None, optimizer=None, say=True):
        """Everything a script could look at between two steps."""
        if loss is not None:
            loss = float(loss.detach()) if isinstance(loss, torch.Tensor) else loss
            self.note("loss", loss)
            if say:
                self.print(f"loss {loss:.5f}")
        if model is not None:
            self.gradients(model)
            self.parameters(model)
            self.note("buffers", dict(model.named_buffers()))
        if optimizer is not None:
            self.note("optimizer", states_of(optimizer))

    def close(self):
        write_for_all(os.path.join(self.directory, "record", f"rank{self.rank}.pkl"), pickle.dumps(self.events))


CASES = {}
parts = 1  # in which a script draws a batch: each is a step of its own (accumulate_ddp.py)


def case(function):
    CASES[function.__name__] = function
    return function


def seed(number):
    random.seed(number)
    numpy.random.seed(number)
    torch.manual_seed(number)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--case", default=",".join(CASES), help="comma separated; all without it")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--parts", type=int, default=1, help="in which a batch is drawn, by the scripts that do so")
    args = parser.parse_args()
    global parts
    parts = args.parts
    if args.list:
        print("\n".join(CASES))
        return
    unknown = [name for name in args.case.split(",") if name not in CASES]
    if unknown:
        sys.exit(f"unknown case {unknown[0]}; there are: {', '.join(CASES)}")
    torch.set_num_threads(1)
    distributed = "TORCHELASTIC_RUN_ID" in os.environ
    if distributed:
        dist.init_process_group("gloo")
    for name in args.case.split(","):
        seed(1234)
        log = Recorder(args.out, name)
        log.print(f"== {name}")
        CASES[name](log)
        log.close()
    if distributed:
        dist.destroy_process_group()
