"""Compares allocators under one training step of plain PyTorch: glibc, glibc tuned, jemalloc, mimalloc, the arena.

    python bench/allocators/run.py [--rounds 3] [--steps 9] [--python .venv/bin/python] [--output FILE]

Every round runs each allocator once, in turn, so that a change of the machine's load meets all of them. CPU time is
the figure to compare on a machine that others use. jemalloc and mimalloc are measured where they are installed
(Debian: libjemalloc2, libmimalloc2.0).
"""

import argparse
import ctypes.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.dirname(HERE))

from jobs import clean_environment  # noqa: E402

MIB = 1 << 20
TIMEOUT_SECONDS = 180
CASTOR = os.path.join(ROOT, "build", "lib", "libcastor.so")


def glibc(**settings):
    return {f"MALLOC_{name.upper()}_": str(value) for name, value in settings.items()}


def arena(retain, **extra):
    return {"LD_PRELOAD": CASTOR, "CASTOR_ARENA": "1", "CASTOR_ARENA_RETAIN": retain, "CASTOR_LOG_LEVEL": "error", **extra}


def contenders():
    rows = {
        "glibc": {},
        "glibc, every block mapped": glibc(mmap_threshold=65536),
        "glibc, trim at 64 MiB": glibc(mmap_threshold=1 << 30, trim_threshold=64 * MIB),
        "glibc, nothing given back": glibc(mmap_threshold=1 << 30, trim_threshold=1 << 40, top_pad=64 * MIB),
    }
    for name in ("jemalloc", "mimalloc"):
        library = ctypes.util.find_library(name)
        if library:
            rows[name] = {"LD_PRELOAD": library}
        else:
            print(f"{name} is not installed: left out", file=sys.stderr)
    rows["castor, no arena"] = {"LD_PRELOAD": CASTOR, "CASTOR_ARENA": "0", "CASTOR_LOG_LEVEL": "error"}
    for retain in ("0", "16M", "64M", "256M"):
        rows[f"arena, retain {retain}"] = arena(retain)
    return rows


def measure(python, environment, steps):
    command = [python, os.path.join(HERE, "step.py"), str(steps)]
    done = subprocess.run(
        command, env=clean_environment(environment), capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    if done.returncode != 0:
        sys.exit(f"step.py failed with status {done.returncode} under {environment}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--python", default=os.path.join(ROOT, ".venv", "bin", "python"))
    parser.add_argument("--only", default="", help="only the allocators whose name holds this text")
    parser.add_argument("--output", default=os.path.join(ROOT, "bench", "results", "allocators.json"))
    arguments = parser.parse_args()
    if not os.path.exists(CASTOR):
        sys.exit(f"{CASTOR} is missing: run make first")

    rows = {name: environment for name, environment in contenders().items() if arguments.only in name}
    runs = {name: [] for name in rows}
    for round_number in range(arguments.rounds):
        for name, environment in rows.items():
            print(f"round {round_number + 1}/{arguments.rounds}: {name}", file=sys.stderr)
            runs[name].append(measure(arguments.python, environment, arguments.steps))

    results = {
        name: {key: statistics.median(run[key] for run in done) for key in done[0]} for name, done in runs.items()
    }
    losses = {result["loss"] for result in results.values()}
    if len(losses) != 1:
        sys.exit(f"the allocators changed the losses: {losses}")
    base = next(iter(results.values()))
    print(f"{'allocator':28} {'ms':>8} {'CPU ms':>8} {'ratio':>6} {'sys ms':>7} {'faults':>8} {'peak MiB':>9} {'between':>8}")
    for name, row in results.items():
        print(
            f"{name:28} {row['ms']:8.0f} {row['cpu_ms']:8.0f} {row['cpu_ms'] / base['cpu_ms']:6.3f} {row['system_ms']:7.0f} "
            f"{row['faults']:8.0f} {row['peak'] / MIB:9.0f} {row['between'] / MIB:8.0f}"
        )
    versions = subprocess.run(
        [arguments.python, "-c", "import torch, sys; print(torch.__version__, sys.version.split()[0])"],
        capture_output=True, text=True, env=clean_environment(),
    ).stdout.split()
    report = {
        "what": "one training step of a small GPT, one process, one thread; medians of rounds of medians of steps; "
        "peak and between: resident bytes above those after the import of torch, at most and between steps",
        "command": "python bench/allocators/run.py " + " ".join(sys.argv[1:]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "kernel": platform.release(), "load": os.getloadavg()[0]},
        "versions": {"torch": versions[0], "python": versions[1], "libc": " ".join(platform.libc_ver())},
        "rounds": arguments.rounds,
        "steps": arguments.steps,
        "results": results,
    }
    os.makedirs(os.path.dirname(arguments.output), exist_ok=True)
    with open(arguments.output, "w") as out:
        json.dump(report, out, indent=1)
        out.write("\n")


def cpu_name():
    with open("/proc/cpuinfo") as info:
        return next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), "unknown")


main()
