"""What a launch costs with homes in use: its arguments are searched for addresses in homes (interpose/hooks/cuda/writers.c). PyTorch's own
launches on the simulated devices, as in pytorch.py, by what their argument points to (homes_steps.py).

Contenders run in turn, several rounds; differences are of the least steps, to an empty preloaded library in the same round. `in_launches`
is what the launches themselves take more, from the caller's side (launch_clock.c); what PyTorch's allocator does in other ways because
model data lies elsewhere is in the others alone.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile

import pytorch
from jobs import clean_environment

STEPS = 20
MOST_NS = 500


def contenders(library, empty):
    castor = {"first": library, "PYTHONPATH": os.path.join(os.path.dirname(library), "castor"), "CASTOR_PLUGIN": "gemini"}
    homes = dict(castor, CASTOR_PLACEMENT="static", CASTOR_OFFLOAD_OPTIM_FRAC="1", CASTOR_OFFLOAD_PARAM_FRAC="1")
    return {
        pytorch.BASE: {"first": empty},
        "castor, counted only": dict(homes, CASTOR_TRACE="0"),
        "castor, every call recorded": dict(homes, CASTOR_TRACE_MAX="64G"),
    }


def run(python, folder, settings):
    settings = dict(settings)
    castor = "CASTOR_PLUGIN" in settings
    environment = pytorch.simulated.environment(base=clean_environment(), preload_first=settings.pop("first"))
    clock = os.path.join(folder, "liblaunch_clock.so")
    environment["LD_PRELOAD"] = f"{clock}:{environment['LD_PRELOAD']}"
    environment.update(settings)
    with tempfile.TemporaryDirectory(prefix="castor-bench-") as log:
        environment["CASTOR_LOG_DIR"] = log
        command = [python, os.path.join(pytorch.HERE, "homes_steps.py"), str(STEPS), clock, *(["homes"] if castor else [])]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode != 0 or done.stderr:
        sys.exit(f"homes_steps.py failed with status {done.returncode} under {settings}:\n{done.stderr}")
    found = json.loads(done.stdout)
    launches, clocked = found.pop("launches"), found.pop("clocked")
    # The least of each: what other programs take of the machine only adds.
    return {
        key: {kind: min(values) / (clocked if key == "in_launches_ns" else launches)[kind] for kind, values in found[key].items()} for key in found
    }


def measure(python, library, folder, rounds):
    """The results, or a line that says why there are none."""
    why = pytorch.unmeasured(python)
    if why:
        return {"not_measured": why}
    rows = contenders(library, os.path.join(folder, "libempty.so"))
    runs = {name: [] for name in rows}
    for number in range(rounds):
        print(f"homes, round {number + 1} of {rounds}", file=sys.stderr)
        for name, settings in rows.items():
            runs[name].append(run(python, folder, settings))
    kinds = list(runs[pytorch.BASE][0]["step_ns"])

    def above(name, key, kind):
        return round(statistics.median(a[key][kind] - b[key][kind] for a, b in zip(runs[name], runs[pytorch.BASE])))

    results = {
        name: {
            kind: {
                "ns_per_launch": round(statistics.median(one["step_ns"][kind] for one in runs[name])),
                "more_ns": above(name, "step_ns", kind),
                "more_in_launches_ns": above(name, "in_launches_ns", kind),
                "more_cpu_ns": above(name, "step_cpu_ns", kind),
                "ratio": round(statistics.median(a["step_ns"][kind] / b["step_ns"][kind] for a, b in zip(runs[name], runs[pytorch.BASE])), 3),
            }
            for kind in kinds
        }
        for name in rows
    }
    for name, of_kinds in results.items():
        for kind, row in of_kinds.items():
            print(f"{name:28} {kind:39} {row['ns_per_launch']:6} ns a launch, {row['more_ns']:5} ({row['more_in_launches_ns']} in launches, {row['more_cpu_ns']} of processor time) more, x {row['ratio']:.3f}")
    return {
        "what": "steps of launches (homes_steps.py), PyTorch's CUDA wheel on simulated devices, a step's time divided by its launches and "
        "products; more: than with an empty preloaded library in the same round, of the least steps, median over rounds",
        "rounds": rounds,
        "steps": STEPS,
        "load": os.getloadavg()[0],
        "most_ns": MOST_NS,
        "results": results,
        "samples_ns_per_launch": {name: {kind: [round(one["step_ns"][kind], 1) for one in done] for kind in kinds} for name, done in runs.items()},
        "samples_in_launches_ns_per_launch": {name: {kind: [round(one["in_launches_ns"][kind], 1) for one in done] for kind in kinds} for name, done in runs.items()},
        "samples_cpu_ns_per_launch": {name: {kind: [round(one["step_cpu_ns"][kind], 1) for one in done] for kind in kinds} for name, done in runs.items()},
    }
