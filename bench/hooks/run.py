#!/usr/bin/env python3
"""What a recorded call costs: a loop of 2000 launches a step, plain, beside an empty preloaded library, and recorded; and
what that comes to in PyTorch (pytorch.py), and with homes in use (homes.py).

    python bench/hooks/run.py [--homes] [--rounds 7] [--steps 200] [--python INTERPRETER] [--output FILE]

Every round runs each contender once, in turn. A step's figure is the mean time of its launches; a run's is the median of
its steps; the overhead of a recorded call is the median over rounds of the difference from the empty library. The same for
the processor time of the whole run, which has the making of trace files in it and does not depend on other programs. The start
of `true` is measured in the same way. This part needs a C compiler alone; PyTorch is measured where INTERPRETER has the CUDA
wheel of torch. --homes measures the last part alone, and leaves the rest of FILE as it is.
"""
import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.dirname(HERE))

import homes  # noqa: E402
import pytorch  # noqa: E402
from jobs import clean_environment  # noqa: E402

LAUNCHES = 2000
STARTS = 200


def compile_all(folder, compiler):
    def one(output, source, *flags):
        subprocess.run([compiler, "-O2", "-w", "-std=gnu11", "-I", ROOT, "-o", os.path.join(folder, output), source, *flags], check=True)

    one("libcudart.so.13", os.path.join(HERE, "device.c"), "-shared", "-fPIC", "-Wl,-soname,libcudart.so.13")
    one("launches", os.path.join(HERE, "launches.c"), os.path.join(folder, "libcudart.so.13"), f"-Wl,-rpath,{folder}")
    with open(os.path.join(folder, "empty.c"), "w"):
        pass
    one("liblaunch_clock.so", os.path.join(HERE, "launch_clock.c"), "-shared", "-fPIC")
    one("libempty.so", os.path.join(folder, "empty.c"), "-shared", "-fPIC")


def contenders(folder, library, disk, memory):
    return {
        "plain": {},
        "an empty preloaded library": {"LD_PRELOAD": os.path.join(folder, "libempty.so")},
        "counted only": {"LD_PRELOAD": library, "CASTOR_LOG_DIR": memory, "CASTOR_TRACE": "0"},
        "recorded, trace in memory (tmpfs)": {"LD_PRELOAD": library, "CASTOR_LOG_DIR": memory, "CASTOR_TRACE_MAX": "64G"},
        "recorded, trace on disk": {"LD_PRELOAD": library, "CASTOR_LOG_DIR": disk, "CASTOR_TRACE_MAX": "64G"},
    }


def emptied(folder):
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)


def file_system(folder):
    found = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True)
    return found.stdout.strip()


def launches(folder, environment, steps):
    if "CASTOR_LOG_DIR" in environment:
        emptied(environment["CASTOR_LOG_DIR"])
    done = subprocess.run(
        [os.path.join(folder, "launches"), str(steps)], env=clean_environment(environment), capture_output=True, text=True, timeout=300
    )
    if done.returncode != 0 or done.stderr:
        sys.exit(f"the loop failed with status {done.returncode} under {environment}:\n{done.stderr}")
    return [float(line) for line in done.stdout.split()]


def start_ms(environment):
    environment = clean_environment(environment)
    times = []
    for _ in range(STARTS):
        begin = time.perf_counter()
        subprocess.run(["/bin/true"], env=environment)
        times.append((time.perf_counter() - begin) * 1000)
    return statistics.median(times)


def trace_bytes(folder):
    return sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder) if name.endswith(".trace"))


def cpu_name():
    with open("/proc/cpuinfo") as info:
        return next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), "unknown")


def write(path, report):
    with open(path, "w") as out:
        json.dump(report, out, indent=1)
        out.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--homes", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--library", default=os.path.join(ROOT, "build", "lib", "libcastor.so"))
    parser.add_argument("--python", default=os.path.join(ROOT, ".venv", "bin", "python"))
    parser.add_argument("--output", default=os.path.join(ROOT, "bench", "results", "hooks.json"))
    arguments = parser.parse_args()
    if not os.path.exists(arguments.library):
        sys.exit(f"{arguments.library} is missing: run make first")
    library = os.path.abspath(arguments.library)

    disk, memory = tempfile.mkdtemp(dir=os.path.join(ROOT, "build")), tempfile.mkdtemp(dir="/dev/shm")
    try:
        compile_all(disk, os.environ.get("CC", "cc"))
        with_homes = homes.measure(arguments.python, library, disk, arguments.rounds)
        if arguments.homes:
            with open(arguments.output) as old:
                report = dict(json.load(old), homes=dict(with_homes, date=time.strftime("%Y-%m-%d")))
            return write(arguments.output, report)
        rows = contenders(disk, library, os.path.join(disk, "log"), os.path.join(memory, "log"))
        runs, starts = {name: [] for name in rows}, {name: [] for name in ("plain", "an empty preloaded library", "castor")}
        for number in range(arguments.rounds):
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
            for name, environment in rows.items():
                runs[name].append(launches(disk, environment, arguments.steps))
            starts["plain"].append(start_ms({}))
            starts["an empty preloaded library"].append(start_ms(rows["an empty preloaded library"]))
            starts["castor"].append(start_ms({"LD_PRELOAD": library}))
        recorded = trace_bytes(os.path.join(disk, "log"))
        torch = pytorch.measure(arguments.python, library, disk, arguments.rounds)
        kinds = {"disk": file_system(disk), "memory": file_system(memory)}
    finally:
        shutil.rmtree(disk, ignore_errors=True)
        shutil.rmtree(memory, ignore_errors=True)

    medians = {name: [statistics.median(steps) for *steps, _ in done] for name, done in runs.items()}
    whole = {name: [cpu for *_, cpu in done] for name, done in runs.items()}
    base = "an empty preloaded library"
    results = {
        name: {
            "ns_per_launch": round(statistics.median(medians[name]), 1),
            "overhead_ns_median_of_steps": round(statistics.median(a - b for a, b in zip(medians[name], medians[base])), 1),
            "overhead_cpu_ns": round(statistics.median(a - b for a, b in zip(whole[name], whole[base])), 1),
        }
        for name in rows
    }
    for name, row in results.items():
        print(f"{name:36} {row['ns_per_launch']:7.1f} ns a launch, {row['overhead_ns_median_of_steps']:6.1f} above the empty library; processor time of the whole run {row['overhead_cpu_ns']:6.1f} ns more")
    begin = {name: round(statistics.median(done), 3) for name, done in starts.items()}
    print("start of true, ms:", ", ".join(f"{name} {value}" for name, value in begin.items()))
    report = {
        "what": "2000 launches a step on a device that does nothing; overhead: above an empty preloaded library in the same "
        "round, median over rounds, of the median step's wall time and of the whole run's processor time per launch; trace bytes include the header and what is reserved",
        "command": "bench/hooks/run.py " + " ".join(a for a in sys.argv[1:] if "/" not in a),
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "kernel": platform.release(), "load": os.getloadavg()[0], "file_systems": kinds},
        "rounds": arguments.rounds,
        "steps": arguments.steps,
        "launches_per_step": LAUNCHES,
        "trace_bytes_per_step": round(recorded / arguments.steps),
        "start_of_true_ms": begin,
        "results": results,
        "samples_ns_per_launch": {name: [round(value, 1) for value in values] for name, values in medians.items()},
        "samples_cpu_ns_per_launch": whole,
        "torch": torch,
        "homes": with_homes,
    }
    write(arguments.output, report)


main()
