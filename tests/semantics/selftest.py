"""Shows that the comparison can fail: changes one thing at a time in a recorded run and looks for the report."""

import copy
import io
import os
import pickle
import shutil
import sys
import tempfile

import torch

import rows as table
from compare import compare_runs
from expect import ADAPTIVE, EXACT, SGD
from record import Recorder


def write_run(folder, change=None, ranks=2):
    """A run of two ranks, as a script would leave it, with `change` applied to its values."""
    torch.manual_seed(3)
    values = {
        "loss": 1.25,
        "small": torch.randn(7, 5),
        "large": nudged(torch.randn(300, 700), 0.0, at=5, to=0.0),
        "tiny": torch.randn(64) * 1e-3,
        "half": torch.randn(64).bfloat16(),
        "none": None,
        "state": {"step": torch.tensor(3.0), "exp_avg": torch.randn(300, 700)},
        "printed": "== \nstep 1 loss 1.2500\n",
        "saved": torch.randn(50, 50),
        "ranks": range(ranks),
        "extra": {},
        "address": 10**8,
    }
    if change:
        change(values)
    for rank in values["ranks"]:
        log = Recorder(folder)
        log.rank = rank
        log.note("loss", values["loss"])
        log.note("parameters", {key: values[key] for key in ("small", "large", "tiny", "half")})
        log.note("gradients", {"small": values["none"], "large": values["large"] * 0.5})
        log.note("optimizer", [{"settings": {"lr": 0.1}, "states": [values["state"]]}])
        log.close()
    torch.save({"model": values["saved"], **values["extra"]}, os.path.join(folder, "model.pt"))
    with open(os.path.join(folder, "legacy.pt"), "wb") as file:
        file.write(legacy(values["saved"], values["address"]))
    return values["printed"]


def legacy(tensor, address):
    """A file of PyTorch's old format from a process in which the tensor's storage is at this address."""
    file = io.BytesIO()
    torch.save(tensor, file, _use_new_zipfile_serialization=False)
    own, other = (b"X" + len(key).to_bytes(4, "little") + key.encode() for key in (str(tensor.untyped_storage()._cdata), str(address)))
    assert own in file.getvalue()
    return file.getvalue().replace(own, other)


def edit(key, function):
    def change(values):
        values[key] = function(copy.deepcopy(values[key]))

    return change


def nudged(tensor, by, at=-1, to=None):
    flat = tensor.view(-1)
    flat[at] = flat[at] + by if to is None else to
    return tensor


# name, change, tolerance, whether the comparison must fail
CHECKS = [
    ("nothing changed", None, EXACT, False),
    ("one element of a small tensor", edit("small", lambda t: nudged(t, 1e-6)), EXACT, True),
    ("the same within the tolerance", edit("small", lambda t: nudged(t, 1e-6)), SGD, False),
    ("one element of a small tensor beyond the tolerance", edit("small", lambda t: nudged(t, 1e-3)), SGD, True),
    ("one unsampled element of a large tensor", edit("large", lambda t: nudged(t, 1e-6, 100_001)), EXACT, True),
    ("one unsampled element beyond the tolerance", edit("large", lambda t: nudged(t, 0.1, 100_001)), SGD, True),
    ("the sign of one zero", edit("large", lambda t: nudged(t, 0.0, at=5, to=-0.0)), EXACT, True),
    ("the sign of one zero within a tolerance", edit("large", lambda t: nudged(t, 0.0, at=5, to=-0.0)), SGD, False),
    ("a parameter beyond the tolerance but below the floor", edit("tiny", lambda t: nudged(t, 5e-5)), ADAPTIVE, False),
    ("a parameter beyond the tolerance and the floor", edit("tiny", lambda t: nudged(t, 5e-4)), ADAPTIVE, True),
    ("a tensor that became NaN", edit("large", lambda t: t * float("nan")), ADAPTIVE, True),
    ("a bfloat16 element", edit("half", lambda t: nudged(t, 0.5)), EXACT, True),
    ("a loss", edit("loss", lambda x: x * (1 + 1e-4)), SGD, True),
    ("a loss within the tolerance", edit("loss", lambda x: x * (1 + 1e-6)), SGD, False),
    ("a gradient that appeared", edit("none", lambda _: torch.zeros(7, 5)), ADAPTIVE, True),
    ("a step count", edit("state", lambda s: {**s, "step": torch.tensor(4.0)}), ADAPTIVE, True),
    ("a state's name", edit("state", lambda s: {"step": s["step"], "exp_sum": s["exp_avg"]}), ADAPTIVE, True),
    ("the order of states", edit("state", lambda s: dict(reversed(s.items()))), ADAPTIVE, True),
    ("a shape", edit("small", lambda t: t.reshape(5, 7)), ADAPTIVE, True),
    ("a memory layout", edit("small", lambda t: t.t().contiguous().t()), ADAPTIVE, True),
    ("a dtype", edit("half", lambda t: t.float()), ADAPTIVE, True),
    ("printed text", edit("printed", lambda s: s.replace("loss", "Loss")), ADAPTIVE, True),
    ("a printed number", edit("printed", lambda s: s.replace("1.25", "1.35")), SGD, True),
    ("a printed number's last digit", edit("printed", lambda s: s.replace("1.2500", "1.2501")), SGD, False),
    ("a printed number's last digit, bitwise", edit("printed", lambda s: s.replace("1.2500", "1.2501")), EXACT, True),
    ("a line more", edit("printed", lambda s: s + "done\n"), SGD, True),
    ("a saved tensor", edit("saved", lambda t: nudged(t, 1.0)), SGD, True),
    ("a saved tensor that is a view of more bytes", edit("saved", lambda t: torch.cat([t, t])[:50]), SGD, True),
    ("a key more in a saved file", edit("extra", lambda _: {"x": 1}), SGD, True),
    ("addresses of fewer digits in a file of PyTorch's old format", edit("address", lambda address: address // 10), EXACT, False),
    ("a rank without a record", edit("ranks", lambda _: range(1)), SGD, True),
]


def main():
    failed = 0
    base = tempfile.mkdtemp(prefix="selftest-")
    try:
        reference = os.path.join(base, "reference")
        printed = write_run(reference)
        for name, change, tolerance, must_fail in CHECKS:
            candidate = os.path.join(base, "candidate")
            shutil.rmtree(candidate, ignore_errors=True)
            text = write_run(candidate, change)
            outcome = compare_runs(reference, candidate, (printed, text), 2, tolerance)
            good = bool(outcome.failures) == must_fail
            failed += not good
            found = outcome.failures[0] if outcome.failures else "equal" if outcome.bitwise else "within the tolerance"
            print(f"{'ok    ' if good else 'FAILED'} {name}: {found}")
        os.remove(os.path.join(reference, "model.pt"))
        with open(os.path.join(reference, "record", "rank0.pkl"), "rb") as file:
            events = pickle.load(file)
        with open(os.path.join(reference, "record", "rank0.pkl"), "wb") as file:
            pickle.dump(events[:-1], file)
        candidate = os.path.join(base, "candidate")
        shutil.rmtree(candidate, ignore_errors=True)
        text = write_run(candidate)
        outcome = compare_runs(reference, candidate, (printed, text), 2, EXACT)
        for name, word in (("a file more", "unexpected ['model.pt']"), ("an event more", "saw the events")):
            good = any(word in failure for failure in outcome.failures)
            failed += not good
            print(f"{'ok    ' if good else 'FAILED'} {name}")
        for complaint in table.disagreements():
            failed += 1
            print(f"FAILED {complaint}")
    finally:
        shutil.rmtree(base)
    print(f"{len(CHECKS) + 2 - min(failed, len(CHECKS) + 2)} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
