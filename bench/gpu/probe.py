"""Builds the probe (probe/) and runs its checks: each becomes a row of the result, and of bench/results/gpu-probe.json."""
import glob
import json
import os
import subprocess
import time

from checks import HERE, RESULTS, LeftOut, expect, first_file, run_bounded, simulated, stop_all, toolkit, wheel_folders

SOURCES = os.path.join(HERE, "probe")
ARCHITECTURES = ("-gencode", "arch=compute_90,code=sm_90", "-gencode", "arch=compute_80,code=compute_80")


def build(figures, checks):
    """The probe, by the C compiler; its kernels, where nvcc is there."""
    tools = toolkit(checks.args.nvcc)
    folders = ([tools, os.path.join(tools, "targets", "x86_64-linux")] if tools else []) + wheel_folders(checks.args.python)
    folder, header = first_file(folders, "include/cuda.h")
    if not header:
        raise LeftOut("no cuda.h: neither a toolkit nor a wheel of NVIDIA's has it")
    figures["headers"] = header
    command = [os.environ.get("CC") or "cc", "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-isystem", os.path.dirname(header), "-o", checks.path("probe"),
               *[path for path in sorted(glob.glob(os.path.join(SOURCES, "*.c"))) if not path.endswith("bodies.c")], "-ldl"]
    done = run_bounded(command, 60)
    expect(done.returncode == 0, f"{command[0]}: {done.stderr.strip()[-600:]}")
    figures["kernels"] = bool(tools)
    if tools:
        command = [checks.args.nvcc, "-fatbin", "--no-compress", *ARCHITECTURES, "-o", checks.path("kernels.fatbin"), os.path.join(SOURCES, "kernels.cu")]
        done = run_bounded(command, 60)
        expect(done.returncode == 0, f"nvcc: {done.stderr.strip()[-600:]}")
    if checks.args.simulated:
        done = run_bounded(["cc", "-shared", "-fPIC", "-O2", "-o", checks.path("bodies.so"), os.path.join(SOURCES, "bodies.c")], 60)
        expect(done.returncode == 0, f"cc: {done.stderr.strip()[-600:]}")


def command_of(checks, names, limit_s):
    command = [checks.path("probe"), "--limit", f"{limit_s:.0f}"]
    if os.path.exists(checks.path("kernels.fatbin")):
        command += ["--kernels", checks.path("kernels.fatbin")]
    if checks.args.simulated:
        return [*command, "--tiny", "--host-bytes", str(1 << 30), "--cublas", "libcublas.so.13", *names]
    tools = toolkit(checks.args.nvcc)
    _, cublas = first_file([*wheel_folders(checks.args.python), *([tools] if tools else [])], "lib/libcublas.so.13", "lib64/libcublas.so.13")
    if cublas:
        command += ["--cublas", cublas]
    if checks.args.host_bytes:
        command += ["--host-bytes", str(checks.args.host_bytes)]
    return [*command, *names]


def environment(checks):
    base = checks.environment()
    if not checks.args.simulated:
        return base
    return simulated.environment(memory="2G", base=base, build=checks.args.build, kernels=checks.path("bodies.so"), check="fault")


def keep(checks, rows):
    """The probe's own result file: the rows of these checks, instead of those of an earlier run on the same device."""
    path = checks.path("gpu-probe.json") if checks.args.simulated else os.path.join(RESULTS, "gpu-probe.json")
    result = {**checks.result, "what": "what a device and its driver can do of what the library relies on, and how long it takes", "checks": rows}
    try:
        with open(path) as file:
            before = json.load(file)
        if before["machine"]["gpu"] == result["machine"]["gpu"]:
            names = {row["check"] for row in rows}
            result["checks"] = [row for row in before["checks"] if row["check"] not in names] + rows
    except (OSError, ValueError, KeyError):
        pass
    paths = [path]
    if os.environ.get("OUT") and os.path.isdir(os.environ["OUT"]) and not checks.args.simulated:
        paths.append(os.path.join(os.environ["OUT"], "gpu-probe.json"))
    for each in paths:
        with open(each, "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")


def run(checks, group, limit_s):
    """Adds a row for each check of the group as it ends."""
    if checks.args.only and not any(word in f"probe {group}" for word in checks.args.only):
        return
    checks.check(f"probe {group}: build", 120, build)
    limit_s = min(limit_s, checks.left())
    if checks.rows[-1]["verdict"] != "ok" or limit_s < 5:
        return
    rows = []
    with subprocess.Popen(command_of(checks, [group], limit_s), env=environment(checks), cwd=checks.work, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, text=True) as process:
        ends = time.monotonic() + limit_s + 30
        for line in process.stdout:  # a line at least at each check's own limit
            try:
                row = json.loads(line)
            except ValueError:
                row = {"check": "unreadable", "verdict": "FAILED", "why": line.strip()[:200]}
            rows.append(row)
            checks.add({**row, "check": f"probe: {row['check']}"})
            keep(checks, rows)
            if time.monotonic() > ends:
                stop_all(process)
        status = process.wait()
    if status not in (0, 1):
        checks.add({"check": f"probe {group}", "verdict": "FAILED", "why": f"the probe ended with status {status}"})
