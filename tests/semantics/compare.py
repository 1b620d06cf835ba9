"""Compares what two runs of one script saw and wrote.

A run is a folder `out` (with `record/rankR.pkl`, see tests/scripts/record.py, and whatever the script wrote) and the
text that it printed. The first run is the reference; every rank of the second is held against it.
"""

import io
import json
import math
import os
import pickle
import pickletools
import re
import sys
import types
from dataclasses import dataclass, field

import numpy

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts"))

NUMBER = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?|nan|inf")


class Allowed(float):
    """A relative difference, and an absolute one below which values count as equal."""

    floor = 0.0


@dataclass(frozen=True)
class Tolerance:
    """Largest difference by kind of value: relative for a number; for a tensor, relative to its largest element.
    `floor` is absolute and for parameters only: one that starts at zero has no size to be relative to. `noise` is that of gradients: a
    bias whose gradient is zero in exact arithmetic has rounding noise."""

    name: str
    reason: str = ""
    loss: float = 0.0
    gradient: float = 0.0
    parameter: float = 0.0
    state: float = 0.0
    floor: float = 0.0
    noise: float = 0.0

    @property
    def exact(self):
        return not (self.loss or self.gradient or self.parameter or self.state)

    def of(self, event):
        if "loss" in event or event == "printed":
            return self.loss
        if event == "optimizer":
            return self.state
        if "parameters" in event or event == "buffers" or event.startswith("file "):
            allowed = Allowed(max(self.parameter, self.state if event.startswith("file ") else 0))
            allowed.floor = self.floor
            return allowed
        allowed = Allowed(self.gradient)
        allowed.floor = self.noise
        return allowed


@dataclass
class Outcome:
    bitwise: bool = True
    compared: int = 0
    absolute: float = 0.0  # the largest difference between two numbers, and relative as above
    relative: float = 0.0
    where: str = ""  # of the largest relative difference
    failures: list = field(default_factory=list)

    def fail(self, where, text):
        self.failures.append(f"{where}: {text}")

    def differ(self, where, absolute, relative, allowed, text):
        self.bitwise = False
        if absolute > self.absolute:
            self.absolute = absolute
        if relative > self.relative:
            self.relative, self.where = relative, where
        if not relative <= allowed and not absolute <= getattr(allowed, "floor", 0.0):
            self.fail(where, f"{text} (difference {absolute:.3g}, relative {relative:.3g}, allowed {allowed:g})")


def compare_numbers(outcome, where, expected, found, allowed):
    outcome.compared += 1
    if expected == found or (expected != expected and found != found):
        return
    if not (math.isfinite(expected) and math.isfinite(found)):
        outcome.fail(where, f"expected {expected!r}, found {found!r}")
        return
    absolute = abs(expected - found)
    relative = absolute / max(abs(expected), abs(found))
    outcome.differ(where, absolute, relative, allowed, f"expected {expected!r}, found {found!r}")


def compare_arrays(outcome, where, expected, found, scale, allowed):
    expected, found = numpy.atleast_1d(expected), numpy.atleast_1d(found)
    finite = numpy.isfinite(expected)
    same = (expected == found) | (numpy.isnan(expected) & numpy.isnan(found))
    if not (same | (finite & numpy.isfinite(found))).all():
        at = int(numpy.argmin(same | (finite & numpy.isfinite(found))))
        outcome.fail(where, f"element {at}: expected {expected[at]}, found {found[at]}")
        return
    if same.all():
        return
    with numpy.errstate(invalid="ignore"):
        difference = numpy.where(same, 0.0, numpy.abs(expected.astype(float) - found.astype(float)))
    at = int(difference.argmax())
    count = int((~same).sum())
    text = f"{count} of {same.size} values differ, most at {at}: expected {expected[at]}, found {found[at]}"
    outcome.differ(where, float(difference[at]), float(difference[at] / scale) if scale else math.inf, allowed, text)


def largest(array):
    finite = numpy.abs(array[numpy.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0


def compare_tensors(outcome, where, expected, found, allowed):
    outcome.compared += 1
    if "sparse" in expected or "sparse" in found:
        compare_values(outcome, where, expected.get("sparse"), found.get("sparse"), allowed)
        return
    for key in ("dtype", "shape", "stride"):
        if expected[key] != found[key]:
            outcome.fail(where, f"{key} is {found[key]}, expected {expected[key]}")
            return
    if expected["hash"] == found["hash"]:
        return
    outcome.bitwise = False
    before = len(outcome.failures), outcome.absolute
    if "values" in expected:
        scale = largest(numpy.atleast_1d(expected["values"]))
        compare_arrays(outcome, where, expected["values"], found["values"], scale, allowed)
    else:
        scale = largest(expected["sample"])
        compare_arrays(outcome, where, expected["sample"], found["sample"], scale, allowed)
        scale = largest(expected["absolute"])
        compare_arrays(outcome, where + " (sums of blocks)", expected["sums"], found["sums"], scale, allowed)
        compare_arrays(outcome, where + " (sums of blocks)", expected["absolute"], found["absolute"], scale, allowed)
    if allowed == 0 and len(outcome.failures) == before[0]:
        outcome.fail(where, "the bytes differ (a zero's sign, a NaN's payload, or values outside the sample)")


def compare_values(outcome, where, expected, found, allowed):
    if len(outcome.failures) > 20:
        return
    if isinstance(expected, bool) or isinstance(found, bool) or type(expected) is not type(found):
        numbers = isinstance(expected, (int, float)) and isinstance(found, (int, float))
        outcome.compared += 1
        if type(expected) is not type(found) and not (numbers and expected == found):
            outcome.fail(where, f"expected {shown(expected)}, found {shown(found)}")
        elif expected != found:
            outcome.fail(where, f"expected {expected!r}, found {found!r}")
    elif isinstance(expected, dict):
        if set(expected) == {"tensor"} and set(found) == {"tensor"}:
            compare_tensors(outcome, where, expected["tensor"], found["tensor"], allowed)
        elif list(expected) != list(found):
            outcome.fail(where, f"expected the keys {list(expected)[:12]}, found {list(found)[:12]}")
        else:
            for key in expected:
                compare_values(outcome, f"{where}.{key}", expected[key], found[key], allowed)
    elif isinstance(expected, list):
        if len(expected) != len(found):
            outcome.fail(where, f"expected {len(expected)} items, found {len(found)}")
            return
        for index, (a, b) in enumerate(zip(expected, found)):
            compare_values(outcome, f"{where}[{index}]", a, b, allowed)
    elif isinstance(expected, (int, float)):
        compare_numbers(outcome, where, expected, found, allowed)
    elif isinstance(expected, str):
        compare_text(outcome, where, expected, found, allowed)
    else:
        outcome.compared += 1
        if expected != found:
            outcome.fail(where, f"expected {shown(expected)}, found {shown(found)}")


def shown(value):
    if isinstance(value, dict) and set(value) == {"tensor"} and "shape" in value["tensor"]:
        return f"a tensor {value['tensor']['dtype']} {value['tensor']['shape']}"
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "..."


def compare_text(outcome, where, expected, found, allowed):
    """Equal text, or text that differs in its numbers only, by no more than the tolerance and one last digit."""
    outcome.compared += 1
    if expected == found:
        return
    lines = expected.splitlines(), found.splitlines()
    for number, (a, b) in enumerate(zip(*lines), 1):
        if a == b:
            continue
        numbers = NUMBER.findall(a), NUMBER.findall(b)
        close = len(numbers[0]) == len(numbers[1]) and NUMBER.sub("#", a) == NUMBER.sub("#", b) and allowed
        for x, y in zip(*numbers):
            decimals = len(x.partition(".")[2]) if "e" not in x.lower() else 0
            slack = 1.01 * 10.0**-decimals if "." in x and decimals else 0.0
            close = close and (x == y or abs(float(x) - float(y)) <= slack + allowed * abs(float(x)))
        if not close:
            outcome.fail(where, f"line {number}: expected {a!r}, found {b!r}")
            return
    if len(lines[0]) != len(lines[1]):
        outcome.fail(where, f"expected {len(lines[0])} lines, found {len(lines[1])}; the last is {(lines[1] or [''])[-1]!r}")
    outcome.bitwise = False


def compare_records(outcome, reference, candidate, ranks, tolerance, single=False):
    """Rank by rank; a single-process script has one reference for all ranks."""
    for rank in range(ranks):
        name = f"rank{0 if single else rank}.pkl"
        with open(os.path.join(reference, "record", name), "rb") as file:
            expected = pickle.load(file)
        path = os.path.join(candidate, "record", f"rank{rank}.pkl")
        if not os.path.exists(path):
            outcome.fail(f"rank {rank}", "wrote no record")
            continue
        with open(path, "rb") as file:
            found = pickle.load(file)
        names = [event for event, _ in expected], [event for event, _ in found]
        if names[0] != names[1]:
            outcome.fail(f"rank {rank}", f"saw the events {shown(names[1])}, expected {shown(names[0])}")
            continue
        for index, ((event, a), (_, b)) in enumerate(zip(expected, found)):
            compare_values(outcome, f"rank {rank}, event {index} {event}", a, b, tolerance.of(event))


def compare_ranks(outcome, candidate, ranks):
    """All ranks of a single-process script must see the same, to the last bit."""
    events = []
    for rank in range(ranks):
        with open(os.path.join(candidate, "record", f"rank{rank}.pkl"), "rb") as file:
            events.append(pickle.load(file))
    for rank in range(1, ranks):
        between = Outcome()
        for index, ((event, a), (_, b)) in enumerate(zip(events[0], events[rank])):
            compare_values(between, f"rank {rank} against rank 0, event {index} {event}", a, b, 0.0)
        outcome.failures += between.failures[:3]


def files_of(folder):
    found = {}
    for base, folders, names in os.walk(folder):
        if base == folder:
            folders[:] = [name for name in folders if name != "record"]
        for name in names:
            path = os.path.join(base, name)
            found[os.path.relpath(path, folder)] = path
    return found


def size_of(path):
    """In bytes. PyTorch's old format names storages by their addresses; how many digits these have is a matter of chance."""
    with open(path, "rb") as file:
        data = file.read()
    keys = []
    if data.startswith(pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)):
        stream = io.BytesIO(data)
        for _ in range(4):  # the format, its version, the machine, the object
            for _ in pickletools.genops(stream):
                pass
        keys = pickle.load(stream)
    return len(data) - sum(data.count(key.encode()) * len(key) for key in keys)


class OfScript:
    """An object of a class that only the script's process knows."""


class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        try:
            return super().find_class(module, name)
        except (AttributeError, ImportError):
            return type(name, (OfScript,), {})


def opened(thing):
    """With all that a module holds in place of the module."""
    import torch

    if isinstance(thing, (torch.nn.Module, OfScript)):
        thing = vars(thing)
    if isinstance(thing, dict):
        return {key: opened(value) for key, value in thing.items()}
    return [opened(value) for value in thing] if type(thing) in (list, tuple) else thing


def contents(path):
    """A file's contents in a form that can be compared, or None."""
    import torch

    from record import frozen

    if path.endswith((".pt", ".pth", ".pth.tar", ".bin", ".ckpt")):
        tolerant = types.ModuleType("pickle")
        vars(tolerant).update({**vars(pickle), "Unpickler": Unpickler})
        return frozen(opened(torch.load(path, map_location="cpu", weights_only=False, pickle_module=tolerant)))
    if path.endswith(".safetensors"):
        from safetensors.torch import load_file

        return frozen(load_file(path))
    if path.endswith(".json"):
        with open(path) as file:
            return without_costs(json.load(file))
    if path.endswith((".txt", ".csv", ".log", ".md")):
        with open(path) as file:
            return file.read()
    return None


def without_costs(value):
    if isinstance(value, dict):
        timed = re.compile("runtime|per_second|time|total_flos")  # the last counts what this rank computed
        return {key: without_costs(item) for key, item in value.items() if not timed.search(key)}
    if isinstance(value, list):
        return [without_costs(item) for item in value]
    return value


def compare_files(outcome, reference, candidate, tolerance, ignored=()):
    expected, found = files_of(reference), files_of(candidate)
    if set(expected) != set(found):
        missing, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
        outcome.fail("files", f"missing {missing[:4]}, unexpected {extra[:4]}")
    for name in sorted(set(expected) & set(found)):
        if os.path.basename(name) in ignored:
            continue
        where = f"file {name}"
        with open(expected[name], "rb") as a, open(found[name], "rb") as b:
            if a.read() == b.read():
                outcome.compared += 1
                continue
        sizes = size_of(expected[name]), size_of(found[name])
        text = name.endswith((".txt", ".csv", ".log", ".json", ".md"))
        if sizes[0] != sizes[1] and not text:
            outcome.fail(where, f"has {sizes[1]} bytes, expected {sizes[0]}")
            continue
        values = contents(expected[name]), contents(found[name])
        if values[0] is None:
            outcome.fail(where, "the bytes differ")
            continue
        compare_values(outcome, where, values[0], values[1], tolerance.of(where))


def compare_runs(reference, candidate, printed, ranks, tolerance, single=False, ignored=()):
    """`reference` and `candidate` are folders, `printed` the two texts."""
    outcome = Outcome()
    compare_text(outcome, "printed", printed[0], printed[1], tolerance.of("printed"))
    compare_records(outcome, reference, candidate, ranks, tolerance, single)
    if single and not outcome.failures:
        compare_ranks(outcome, candidate, ranks)
    compare_files(outcome, reference, candidate, tolerance, ignored)
    return outcome
