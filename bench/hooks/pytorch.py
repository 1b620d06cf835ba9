"""The overhead of full tracing on PyTorch's own launches: the CUDA wheel on the simulated devices, whose kernels
do nothing, so that a step is bound by the 2000 launches that Python makes (pytorch_steps.py).

Contenders run in turn, several rounds; the ratio is that of median steps, to an empty preloaded library in the same round.
"""
import ctypes
import glob
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
for folder in ("bench", "tests/sim", "tests/hooks"):
    sys.path.insert(0, os.path.join(ROOT, folder))

import simulated  # noqa: E402
import trace_files  # noqa: E402
from jobs import clean_environment  # noqa: E402

STEPS = 60
BASE = "an empty preloaded library"


def contenders(library, empty, log):
    none = {"first": library, "PYTHONPATH": os.path.join(os.path.dirname(library), "castor"), "CASTOR_LOG_DIR": log}
    return {
        "plain": {},
        BASE: {"first": empty},
        "castor, counted only": dict(none, CASTOR_TRACE="0"),
        "castor, plugin none, every call recorded": dict(none, CASTOR_TRACE_MAX="64G"),
    }


def run(python, settings, steps):
    """ns of each step, by the clock and of the thread's processor time."""
    settings = dict(settings)
    environment = simulated.environment(base=clean_environment(), preload_first=settings.pop("first", None))
    environment.update(settings)
    log = settings.get("CASTOR_LOG_DIR")
    if log:
        os.makedirs(log, exist_ok=True)
        for name in os.listdir(log):
            os.unlink(os.path.join(log, name))
    done = subprocess.run(
        [python, os.path.join(HERE, "pytorch_steps.py"), str(steps)], env=environment, capture_output=True, text=True, timeout=300
    )
    if done.returncode != 0 or done.stderr:
        sys.exit(f"pytorch_steps.py failed with status {done.returncode} under {settings}:\n{done.stderr}")
    return json.loads(done.stdout)


def recorded_bytes(log):
    """Bytes of records, without what is reserved."""
    records = 0
    for path in glob.glob(os.path.join(log, "*.trace")):
        with open(path, "rb") as file:
            records += trace_files.Segment.from_buffer_copy(file.read(ctypes.sizeof(trace_files.Segment))).committed
    return records * ctypes.sizeof(trace_files.Record)


def unmeasured(python):
    """Why PyTorch cannot be measured; None: it can."""
    why = simulated.make(python) if os.access(python, os.X_OK) else f"there is no {os.path.basename(python)} with torch"
    if not why:
        return None
    print("PyTorch is not measured:", why.splitlines()[-1], file=sys.stderr)
    return why.splitlines()[-1]


def measure(python, library, folder, rounds):
    """The results, or a line that says why there are none."""
    why = unmeasured(python)
    if why:
        return {"not_measured": why}
    log = os.path.join(folder, "torch-log")
    rows = contenders(library, os.path.join(folder, "libempty.so"), log)
    steps_ns, cpu_ns = {name: [] for name in rows}, {name: [] for name in rows}
    for number in range(rounds):
        print(f"PyTorch, round {number + 1} of {rounds}", file=sys.stderr)
        for name, settings in rows.items():
            result = run(python, settings, STEPS)
            steps_ns[name].append(statistics.median(result["step_ns"]))
            cpu_ns[name].append(statistics.median(result["step_cpu_ns"]))
    whole = recorded_bytes(log)  # the last run was the one that records
    run(python, list(rows.values())[-1], 0)
    bytes_per_step = round((whole - recorded_bytes(log)) / STEPS)

    def ratio(samples, name):
        return round(statistics.median(a / b for a, b in zip(samples[name], samples[BASE])), 3)

    results = {
        name: {
            "step_ms": round(statistics.median(steps_ns[name]) / 1e6, 3),
            "ratio": ratio(steps_ns, name),
            "cpu_ratio": ratio(cpu_ns, name),
        }
        for name in rows
    }
    for name, row in results.items():
        print(f"PyTorch, {name:41} {row['step_ms']:7.3f} ms a step, x {row['ratio']:.3f} ({row['cpu_ratio']:.3f} of processor time)")
    print(f"PyTorch: {bytes_per_step} bytes of trace a step")
    return {
        "what": "x.add_(1) 2000 times a step and one synchronization, PyTorch's CUDA wheel on simulated devices; ratio: of median "
        "steps to an empty preloaded library in the same round, median over rounds; cpu_ratio: of the script's thread",
        "rounds": rounds,
        "steps": STEPS,
        "trace_bytes_per_step": bytes_per_step,
        "results": results,
        "samples_step_ms": {name: [round(value / 1e6, 3) for value in values] for name, values in steps_ns.items()},
        "samples_step_cpu_ms": {name: [round(value / 1e6, 3) for value in values] for name, values in cpu_ns.items()},
    }
