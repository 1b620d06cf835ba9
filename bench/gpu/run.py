#!/usr/bin/env python3
"""What docs/gpu.md asks a device to show: hooks by effect on the real driver, and what they cost.

    python bench/gpu/run.py [--python PYTHON] [--nvcc NVCC] [--rounds 5] [--output FILE]
    python bench/gpu/run.py --simulated      as far as simulated devices go; the result is no measurement

Each check runs a program that knows what it calls, under `castor run`, and compares that with the trace. The result is
written as JSON, findings included; the last line is `N passed, N failed`. Without a GPU nothing runs, and the status is 2.
"""
import argparse
import ctypes
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(ROOT, "tests", "hooks"), os.path.join(ROOT, "tests", "sim")]

import simulated  # noqa: E402
import trace_files  # noqa: E402
from jobs import CASTOR, clean_environment  # noqa: E402

NO_DEVICE = 2
LIMIT_S = 300
LAUNCH = re.compile(r"_*(cuda|cu)Launch(Cooperative)?Kernel")
# What the runtime's calls become in the trace: the runtime's functions, or the driver's that a static runtime calls.
KINDS = {
    "launches": LAUNCH,
    "graphs": re.compile(r"(cuda|cu)GraphLaunch"),
    "allocations": re.compile(r"cudaMalloc$|cuMemAlloc(_v2)?$"),
    "copies": re.compile(r"cudaMemcpyAsync|cuMemcpyDtoHAsync|cuMemcpyAsync"),
    "sets": re.compile(r"cudaMemsetAsync|cuMemsetD8Async"),
}


class Finding(Exception):
    """What was expected, and what was found."""


def expect(condition, text):
    if not condition:
        raise Finding(text)


# ---- the device ----


def device():
    """The first device and its driver, as a dictionary; a text where there is none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "libcuda.so.1, the driver's library, is not installed"
    status = driver.cuInit(0)
    if status != 0:
        return f"the driver finds no device it can use (cuInit: error {status})"
    count, version, handle, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGetCount(ctypes.byref(count))
    driver.cuDriverGetVersion(ctypes.byref(version))
    if count.value == 0:
        return "the driver has no device"
    driver.cuDeviceGet(ctypes.byref(handle), 0)
    driver.cuDeviceGetName(name, len(name), handle)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
    try:
        with open("/proc/driver/nvidia/version") as file:
            kernel = file.readline().strip()
    except OSError:
        kernel = "unknown"
    return {"name": name.value.decode(), "devices": count.value, "memory_bytes": memory.value,
            "cuda": f"{version.value // 1000}.{version.value % 1000 // 10}", "driver": kernel}


# ---- running ----


class Checks:
    def __init__(self, args):
        self.args, self.results, self.failed = args, [], 0
        self.work = os.path.join(args.build, "gpu")
        shutil.rmtree(self.work, ignore_errors=True)
        os.makedirs(self.work)

    def environment(self, **extra):
        environment = clean_environment(extra, threads=None)
        return simulated.environment(devices=2, base=environment, build=self.args.build) if self.args.simulated else environment

    def run(self, command, name, castor=True, **extra):
        """Runs a command to its end; returns its output, and its folder of logs."""
        logs = self.path(f"{name}.log")
        if castor:
            command = [CASTOR, "run", "--log-dir", logs, "--", *command]
        done = subprocess.run(command, env=self.environment(**extra), cwd=self.work, capture_output=True, text=True, timeout=LIMIT_S)
        expect(done.returncode == 0, f"status {done.returncode}: {(done.stderr.strip() or done.stdout.strip())[-400:]}")
        return done.stdout, logs

    def path(self, name):
        return os.path.join(self.work, name)

    def compile(self, output, source, *flags):
        command = [self.args.nvcc, "-O2", "-o", self.path(output), os.path.join(HERE, source), *flags]
        done = subprocess.run(command, capture_output=True, text=True)
        expect(done.returncode == 0, f"nvcc fails: {done.stderr.strip()[-400:]}")

    def check(self, name, function, *arguments):
        figures = {}
        try:
            left_out = function(figures, *arguments)
            verdict = "left out" if left_out else "ok"
        except (Finding, OSError, subprocess.TimeoutExpired) as error:
            verdict, left_out = "FAILED", str(error)
            self.failed += 1
        self.results.append({"check": name, "verdict": verdict, **({"why": left_out} if left_out else {}), **figures})
        shown = {key: value for key, value in figures.items() if not isinstance(value, (dict, list))}
        print(f"{verdict:8} {name}" + (f": {left_out}" if left_out else "") + (f"  {shown}" if shown else ""), flush=True)


def calls_of(logs):
    """Count and bytes by function, of all processes of a run."""
    found = {}
    for process in trace_files.read_counters(logs):
        for name, counter in process.calls.items():
            count, size = found.get(name, (0, 0))
            found[name] = (count + counter.count, size + counter.bytes)
    return found


def expected_of(output):
    return {name: (int(count), int(size)) for name, count, size in (line.split() for line in output.splitlines())}


# ---- the checks ----


def driver_functions(figures, checks, way):
    """Each function that the program has called is in the trace, as often and with as many bytes."""
    output, logs = checks.run([checks.path("driver"), way], f"driver-{way}")
    expected, found = expected_of(output), calls_of(logs)
    figures["functions"] = len(expected)
    wrong = {name: [list(called), list(found.get(name, (0, 0)))] for name, called in expected.items() if found.get(name) != called}
    figures["differ"] = wrong
    expect(not wrong, f"called and in the trace (count, bytes): {wrong}")


def program_of_nvcc(figures, checks, runtime):
    if checks.args.simulated and runtime == "static":
        return "the simulation has no export tables, which a static runtime begins with"
    unchecked = ["unchecked"] if checks.args.simulated else []
    output, logs = checks.run([checks.path(f"program-{runtime}"), "calls", *unchecked], f"program-{runtime}")
    found = calls_of(logs)
    figures["export_tables"] = sum(process.file.gauges[trace_gauge("EXPORT_TABLES")].last for process in trace_files.read_counters(logs))
    figures["calls"] = {name: list(counted) for name, counted in sorted(found.items())}
    missing = []
    for kind, (count, size) in expected_of(output).items():
        seen = [counted for name, counted in found.items() if KINDS[kind].match(name)]
        seen_count, seen_size = sum(c for c, _ in seen), sum(s for _, s in seen)
        figures[kind] = [seen_count, count]
        # A static runtime allocates, copies and sets for itself, too.
        exact = runtime == "shared"
        if (seen_count, seen_size) != (count, size) if exact else seen_count < count or seen_size < size:
            missing.append(f"{kind}: {seen_count} of {count}, {seen_size} of {size} bytes")
    expect(not missing, "in the trace " + "; ".join(missing))


def library(figures, checks, part):
    """The kernels that a library has run are launches of the trace."""
    if checks.args.simulated and part in ("cublas", "cudnn"):
        return "NVIDIA's library does not run on simulated devices"
    path = checks.path(f"{part}.json")
    checks.run([checks.args.python, os.path.join(HERE, "libraries.py"), part, path], f"library-{part}")
    with open(path) as file:
        figures.update(json.load(file))
    kernels, launches = figures["kernels"], figures["launches_in_the_trace"]
    if part == "nccl":
        called = figures["calls"].get("ncclAllReduce", 0)
        expect(called == figures["work_calls"], f"{called} of {figures['work_calls']} calls of ncclAllReduce are in the trace")
    else:
        expect(kernels >= figures["work_calls"], f"{kernels} kernels ran for {figures['work_calls']} calls")
    expect(launches >= kernels, f"{kernels} kernels ran, {launches} launches are in the trace: the others are hidden")


def cost_of_a_launch(figures, checks, runtime):
    """The host's time of a launch, plain and recorded, in interleaved rounds."""
    if checks.args.simulated:
        return "a simulated device's launch is no measurement"
    contenders = {"plain": {}, "counted only": {"CASTOR_TRACE": "0"}, "recorded": {"CASTOR_TRACE_MAX": "16G"}}
    samples = {name: [] for name in contenders}
    for _ in range(checks.args.rounds):
        for name, extra in contenders.items():
            command = [checks.path(f"program-{runtime}"), "launches", "100"]
            output, _ = checks.run(command, f"cost-{runtime}", castor=name != "plain", **extra)
            samples[name].append(statistics.median(float(line) for line in output.split()))
    figures["ns_per_launch"] = {name: round(statistics.median(values), 1) for name, values in samples.items()}
    figures["overhead_ns"] = round(statistics.median(a - b for a, b in zip(samples["recorded"], samples["plain"])), 1)
    figures["samples_ns"] = samples


def launch_bound_step(figures, checks):
    if checks.args.simulated:
        return "a simulated device's step is no measurement"
    samples = {"plain": [], "recorded": []}
    for _ in range(checks.args.rounds):
        for name in samples:
            path = checks.path("step.json")
            checks.run([checks.args.python, os.path.join(HERE, "libraries.py"), "step", path], "step", castor=name != "plain")
            with open(path) as file:
                samples[name].append(json.load(file)["step_ms"])
    figures["step_ms"] = {name: statistics.median(values) for name, values in samples.items()}
    figures["ratio"] = round(statistics.median(a / b for a, b in zip(samples["recorded"], samples["plain"])), 4)
    figures["samples_ms"] = samples


def report(figures, checks):
    """`castor report` reads what was recorded, and says what the hooks have covered."""
    logs = checks.path("library-elementwise.log")
    done = subprocess.run([CASTOR, "report", logs, "--format", "json"], capture_output=True, text=True, timeout=LIMIT_S)
    expect(done.returncode == 0, f"status {done.returncode}: {done.stderr.strip()[-400:]}")
    figures["coverage"] = json.loads(done.stdout)["coverage"]
    expect(figures["coverage"]["hooked"] > 0, "no function is hooked")
    expect(figures["coverage"]["missed"] == 0, f"missed: {figures['coverage']['missed']} functions of the table")


def trace_gauge(name):
    """The position of a gauge of gauge.def."""
    with open(os.path.join(ROOT, "interpose", "trace", "gauge.def")) as file:
        return re.findall(r"^GAUGE\((\w+),", file.read(), re.M).index(name)


def build(figures, checks):
    libraries = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(shutil.which(checks.args.nvcc)))), "lib64")
    # It has no kernels: as plain C++, so that nothing of the runtime is linked.
    checks.compile("driver", "driver.cc", "-cudart", "none", "-L" + os.path.join(libraries, "stubs"), "-lcuda", "-ldl")
    checks.compile("program-static", "program.cu", "-cudart", "static")
    checks.compile("program-shared", "program.cu", "-cudart", "shared", "-Xlinker", "-rpath=" + libraries)
    version = subprocess.run([checks.args.nvcc, "--version"], capture_output=True, text=True).stdout
    figures["nvcc"] = (re.findall(r"release ([\d.]+)", version) or ["unknown"])[0]


def machine(found, python):
    with open("/proc/cpuinfo") as info:
        cpu = next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), "unknown")
    text = "import torch; print(torch.__version__)"
    torch = subprocess.run([python, "-c", text], capture_output=True, text=True).stdout.strip()
    return {"cpu": cpu, "cores": os.cpu_count(), "kernel": platform.release(), "gpu": found, "torch": torch}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.path.join(ROOT, ".venv", "bin", "python"), help="a Python with torch for CUDA")
    parser.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--output", help="default: bench/results/gpu.json; simulated: gpu-simulated.json in the build folder")
    args = parser.parse_args()
    args.build = os.path.abspath(args.build)
    args.output = args.output or (
        os.path.join(args.build, "gpu-simulated.json") if args.simulated else os.path.join(ROOT, "bench", "results", "gpu.json"))
    found = {"name": "simulated"} if args.simulated else device()
    if isinstance(found, str):
        print(f"gpu-test: there is no GPU here: {found}", file=sys.stderr)
        sys.exit(NO_DEVICE)
    for program, advice in ((args.nvcc, "install the CUDA toolkit, or name nvcc with --nvcc"), (CASTOR, "run make first")):
        if not shutil.which(program):
            sys.exit(f"gpu-test: {program} is missing: {advice}")
    why = simulated.make(args.python, args.build) if args.simulated else None
    if why:
        sys.exit(f"gpu-test: {why}")

    checks = Checks(args)
    checks.check("nvcc", build, checks)
    for way in ("linked", "dlsym", "cuGetProcAddress"):
        checks.check(f"driver functions, {way}", driver_functions, checks, way)
    for runtime in ("shared", "static"):
        checks.check(f"program of nvcc, {runtime} runtime", program_of_nvcc, checks, runtime)
    for part in ("elementwise", "cublas", "cudnn", "nccl"):
        checks.check(f"PyTorch, {part}", library, checks, part)
    for runtime in ("shared", "static"):
        checks.check(f"cost of a launch, {runtime} runtime", cost_of_a_launch, checks, runtime)
    checks.check("launch-bound step", launch_bound_step, checks)
    checks.check("report", report, checks)

    result = {
        "what": "hooks by effect, and what they cost: each check compares what a program has called with the trace of it",
        "command": "bench/gpu/run.py " + " ".join(argument for argument in sys.argv[1:] if "/" not in argument),
        "date": time.strftime("%Y-%m-%d"),
        "simulated": args.simulated,
        "machine": machine(found, args.python),
        "rounds": args.rounds,
        "checks": checks.results,
    }
    with open(args.output, "w") as out:
        json.dump(result, out, indent=1)
        out.write("\n")
    passed = sum(row["verdict"] == "ok" for row in checks.results)
    print(f"{passed} passed, {checks.failed} failed", flush=True)
    sys.exit(1 if checks.failed or not passed else 0)


if __name__ == "__main__":
    main()
