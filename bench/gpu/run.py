#!/usr/bin/env python3
"""What docs/gpu.md asks a device to show: hooks by effect on the real driver, what they cost, and what the driver can do.

    python bench/gpu/run.py [--python PYTHON] [--nvcc NVCC] [--rounds 3] [--limit SECONDS] [--only WORD] [--output FILE]
    python bench/gpu/run.py --simulated      as far as simulated devices go; the result is no measurement

Each check of the hooks runs a program that knows what it calls, under `castor run`, and compares that with the trace. The checks of
the probe (probe/) try the memory that the library relies on. The result is written as JSON after each check, findings included; the last line is
`N passed, N failed, N left out`. Without a GPU nothing runs, and the status is 2.
"""
import argparse
import json
import os
import re
import sys
import time

from checks import CASTOR, HERE, ROOT, LeftOut, add_arguments, begin, expect, median, run_bounded, toolkit
import probe
import trace_files

LAUNCH = re.compile(r"_*(cuda|cu)Launch(Cooperative)?Kernel")
# What the runtime's calls become in the trace: the runtime's functions, or the driver's that a static runtime calls.
KINDS = {
    "launches": LAUNCH,
    "graphs": re.compile(r"(cuda|cu)GraphLaunch"),
    "allocations": re.compile(r"cudaMalloc$|cuMemAlloc(_v2)?$"),
    "copies": re.compile(r"cudaMemcpyAsync|cuMemcpyDtoHAsync|cuMemcpyAsync"),
    "sets": re.compile(r"cudaMemsetAsync|cuMemsetD8Async"),
}
PARTS = ("elementwise", "cublas", "cublaslt", "batched", "cudnn", "attention", "optimizer", "training", "nccl")


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


def need(checks, program):
    if not os.path.exists(checks.path(program)):
        raise LeftOut(f"nvcc has not made {program}")


def driver_functions(figures, checks, way):
    """Each function that the program has called is in the trace, as often and with as many bytes."""
    need(checks, "driver")
    output, logs = checks.run([checks.path("driver"), way], f"driver-{way}")
    expected, found = expected_of(output), calls_of(logs)
    figures["functions"] = len(expected)
    wrong = {name: [list(called), list(found.get(name, (0, 0)))] for name, called in expected.items() if found.get(name) != called}
    figures["differ"] = wrong
    expect(not wrong, f"called and in the trace (count, bytes): {wrong}")


def program_of_nvcc(figures, checks, runtime):
    if checks.args.simulated and runtime == "static":
        return "the simulation has no export tables, which a static runtime begins with"
    need(checks, f"program-{runtime}")
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
    if checks.args.simulated and part == "cudnn":
        return "NVIDIA's library does not run on simulated devices"
    path = checks.path(f"{part}.json")
    numbers = checks.args.simulated and part in ("attention", "optimizer", "training")
    checks.run([checks.args.python, os.path.join(HERE, "libraries.py"), part, path], f"library-{part}", numbers=numbers)
    with open(path) as file:
        figures.update(json.load(file))
    kernels, launches = figures["kernels"], figures["launches_in_the_trace"]
    if part == "nccl":
        called = figures["calls"].get("ncclAllReduce", 0)
        expect(called == figures["work_calls"], f"{called} of {figures['work_calls']} calls of ncclAllReduce are in the trace")
    elif not (checks.args.simulated and part in ("cublas", "cublaslt", "batched")):  # whose products are no kernels there
        expect(kernels >= figures["work_calls"], f"{kernels} kernels ran for {figures['work_calls']} calls")
    expect(launches >= kernels, f"{kernels} kernels ran, {launches} launches are in the trace: the others are hidden")


def cost_of_a_launch(figures, checks, runtime):
    """The host's time of a launch, plain and recorded, in interleaved rounds."""
    if checks.args.simulated:
        return "a simulated device's launch is no measurement"
    need(checks, f"program-{runtime}")
    contenders = {"plain": {}, "counted only": {"CASTOR_TRACE": "0"}, "recorded": {"CASTOR_TRACE_MAX": "16G"}}
    samples = {name: [] for name in contenders}
    for _ in range(checks.args.rounds):
        for name, extra in contenders.items():
            command = [checks.path(f"program-{runtime}"), "launches", "100"]
            output, _ = checks.run(command, f"cost-{runtime}", castor=name != "plain", **extra)
            samples[name].append(median(float(line) for line in output.split()))
    figures["ns_per_launch"] = {name: round(median(values), 1) for name, values in samples.items()}
    figures["overhead_ns"] = round(median(a - b for a, b in zip(samples["recorded"], samples["plain"])), 1)
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
    figures["step_ms"] = {name: median(values) for name, values in samples.items()}
    figures["ratio"] = round(median(a / b for a, b in zip(samples["recorded"], samples["plain"])), 4)
    figures["samples_ms"] = samples


def report(figures, checks):
    """`castor report` reads what was recorded, and says what the hooks have covered."""
    logs = checks.path("library-elementwise.log")
    done = run_bounded([CASTOR, "report", logs, "--format", "json"], 60)
    expect(done.returncode == 0, f"status {done.returncode}: {done.stderr.strip()[-400:]}")
    figures["coverage"] = json.loads(done.stdout)["coverage"]
    expect(figures["coverage"]["hooked"] > 0, "no function is hooked")
    expect(figures["coverage"]["missed"] == 0, f"missed: {figures['coverage']['missed']} functions of the table")


def equality(figures, checks):
    """Training with homes, under budgets and without, beside plain PyTorch on the same device: bits (tests/device)."""
    if checks.args.simulated:
        return "make test compares them on simulated devices"
    log = checks.path("equality.log")
    command = [checks.args.python, os.path.join(ROOT, "tests", "device", "run.py"), "--gpu", "--jobs", str(min(os.cpu_count(), 6))]
    with open(log, "w") as file:
        try:
            run_bounded(command, checks.check_ends - time.monotonic() - 5, out=file)
        finally:
            with open(log) as written:
                lines = written.read().splitlines()
            figures["equal"] = sum(line.startswith("ok ") for line in lines)
            figures["differ"] = [line for line in lines if line.startswith("FAILED ")]
            figures["left_out"] = [line for line in lines if line.startswith("left out ")]
    expect(not figures["differ"], f"{len(figures['differ'])} rows differ, {figures['equal']} are equal")
    expect(lines[-1:] == [f"{figures['equal']} passed, 0 failed"] and figures["equal"], f"it ends with {lines[-1:]}")


def ranks(figures, checks):
    """Ranks on devices beside plain PyTorch: DDP scripts over NCCL on two, a script of one process on two, or with both ranks on one
    (tests/device_ranks)."""
    if checks.args.simulated:
        return "make test compares them on simulated devices"
    command = [checks.args.python, os.path.join(ROOT, "tests", "device_ranks", "run.py"), "--gpu", "OneProcess", "Memory", "Looks"]
    done = run_bounded(command, checks.check_ends - time.monotonic() - 5)
    lines = (done.stdout + done.stderr).splitlines()
    figures["passed"] = [line.split()[0] for line in lines if re.search(r" \.\.\. ok", line)]
    figures["left_out"] = [line for line in lines if "skipped" in line]
    figures["failed"] = [line for line in lines if line.startswith(("FAIL:", "ERROR:"))]
    expect(done.returncode == 0 and figures["passed"], "\n".join(lines[-30:]))


def trace_gauge(name):
    """The position of a gauge of gauge.def."""
    with open(os.path.join(ROOT, "interpose", "trace", "gauge.def")) as file:
        return re.findall(r"^GAUGE\((\w+),", file.read(), re.M).index(name)


def compiled(checks, output, source, *flags):
    command = [checks.args.nvcc, "-O2", "-o", checks.path(output), os.path.join(HERE, source), *flags]
    done = run_bounded(command, 100)
    expect(done.returncode == 0, f"nvcc: {done.stderr.strip()[-400:]}")


def driver_library(tools):
    """How to link with the driver: the toolkit's stub, else the library that is installed."""
    for folder in ("lib64/stubs", "lib/stubs", "targets/x86_64-linux/lib/stubs"):
        if os.path.exists(os.path.join(tools, folder, "libcuda.so")):
            return ["-L" + os.path.join(tools, folder), "-lcuda"]
    with open("/proc/self/maps") as maps:  # checks.device has loaded it
        found = re.findall(r"\S*/libcuda\.so\S*", maps.read())
    expect(found, "neither a stub of the driver's library nor the library is there")
    return [os.path.realpath(found[0])]


def build(figures, checks):
    """The programs of nvcc; the checks of each are left out where it is missing."""
    tools = toolkit(checks.args.nvcc)
    if not tools:
        return f"{checks.args.nvcc} is missing: install the CUDA toolkit, or name nvcc with --nvcc"
    version = run_bounded([checks.args.nvcc, "--version"], 30).stdout
    figures["nvcc"] = (re.findall(r"release ([\d.]+)", version) or ["unknown"])[0]
    # It has no kernels: as plain C++, so that nothing of the runtime is linked.
    compiled(checks, "driver", "driver.cc", "-cudart", "none", *driver_library(tools), "-ldl")
    compiled(checks, "program-static", "program.cu", "-cudart", "static")
    libraries = next((path for path in (os.path.join(tools, name) for name in ("lib64", "lib", "targets/x86_64-linux/lib"))
                      if os.path.isdir(path)), tools)
    compiled(checks, "program-shared", "program.cu", "-cudart", "shared", "-L" + libraries, "-Xlinker", "-rpath=" + libraries)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, limit_s=520)
    args = parser.parse_args()
    checks = begin(args, "gpu-test", "hooks by effect, and what they cost: each check compares what a program has called with the trace of it; "
                   "and the memory that the library relies on")
    probe.run(checks, "levels", 120)
    checks.check("nvcc", 150, build)
    for way in ("linked", "dlsym", "cuGetProcAddress"):
        checks.check(f"driver functions, {way}", 30, driver_functions, way)
    for runtime in ("shared", "static"):
        checks.check(f"program of nvcc, {runtime} runtime", 30, program_of_nvcc, runtime)
    for part in PARTS:
        checks.check(f"PyTorch, {part}", 60, library, part)
    checks.check("report", 60, report)
    checks.check("equality", 300, equality)
    checks.check("ranks", 240, ranks)
    checks.check("launch-bound step", 150, launch_bound_step)
    for runtime in ("shared", "static"):
        checks.check(f"cost of a launch, {runtime} runtime", 90, cost_of_a_launch, runtime)
    sys.exit(checks.close())


if __name__ == "__main__":
    main()
