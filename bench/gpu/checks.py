"""What run.py and bench.py share: checks that run apart from each other, in bounded time, and a result that is written after each.

One check that fails, hangs or crashes loses itself only. Only the standard library is used.
"""
import ctypes
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(ROOT, "tests", "hooks"), os.path.join(ROOT, "tests", "sim")]

import simulated  # noqa: E402
from jobs import CASTOR, clean_environment, descendants, process_table  # noqa: E402

NO_DEVICE = 2
RESULTS = os.path.join(ROOT, "bench", "results")


class Finding(Exception):
    """What was expected, and what was found."""


class LeftOut(Exception):
    """Why a check cannot run here."""


def expect(condition, text):
    if not condition:
        raise Finding(text)


# ---- the machine ----


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


def machine(found, python):
    with open("/proc/cpuinfo") as info:
        cpu = next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), "unknown")
    with open("/proc/meminfo") as info:
        memory = int(info.readline().split()[1]) * 1024
    text = "import torch; print(torch.__version__)"
    torch = subprocess.run([python, "-c", text], capture_output=True, text=True).stdout.strip()
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    return {"cpu": cpu, "cores": os.cpu_count(), "memory_bytes": memory, "kernel": platform.release(), "gpu": found, "torch": torch,
            "castor": commit or "unknown"}


# ---- files that programs need, wherever the machine has them ----


def toolkit(nvcc):
    """The folder of the CUDA toolkit that nvcc belongs to; None where there is no nvcc."""
    found = shutil.which(nvcc)
    return os.path.dirname(os.path.dirname(os.path.realpath(found))) if found else None


def wheel_folders(python):
    """The folders of NVIDIA's wheels beside torch."""
    text = "import nvidia; print('\\n'.join(nvidia.__path__))"
    done = subprocess.run([python, "-c", text], capture_output=True, text=True)
    roots = done.stdout.split() if done.returncode == 0 else []
    return [os.path.join(root, name) for root in roots for name in ("cu13", "cublas", "cuda_runtime")]


def first_file(folders, *names):
    """The first folder that has one of the names below it, and that file; (None, None)."""
    for folder in folders:
        for name in names:
            path = os.path.join(folder, name)
            if os.path.exists(path):
                return folder, path
    return None, None


# ---- running ----


def stop_all(process):
    """Ends a process and everything that it started."""
    known = descendants(process.pid)
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
    table = process_table()
    for pid, start in known:
        if pid in table and table[pid][1] == start:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def run_bounded(command, limit_s, watch=None, out=subprocess.PIPE, **options):
    """The finished process, with its output as texts, or in the file `out`; a Finding when it takes longer. `watch` is called now and then."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, text=True, **options) as process:
        deadline = time.monotonic() + limit_s
        while True:
            try:
                out, error = process.communicate(timeout=0.1 if watch else max(limit_s, 0.1))
                return subprocess.CompletedProcess(command, process.returncode, out, error)
            except subprocess.TimeoutExpired:
                if watch:
                    watch()
                if time.monotonic() > deadline:
                    stop_all(process)
                    out, error = process.communicate()
                    said = (error or out or "").strip()[-200:]
                    raise Finding(f"not done after {limit_s:.0f} s: {' '.join(command[-4:])}: {said}") from None


class Checks:
    """Runs checks until the time is used up, and writes the result after each."""

    def __init__(self, args, name, what, found):
        self.args, self.name, self.failed = args, name, 0
        self.deadline = time.monotonic() + args.limit
        self.limit = args.limit
        self.work = os.path.join(args.build, "gpu", name)
        shutil.rmtree(self.work, ignore_errors=True)
        os.makedirs(self.work)
        self.result = {
            "what": what,
            "command": f"bench/gpu/{os.path.basename(sys.argv[0])} " + " ".join(word for word in sys.argv[1:] if "/" not in word),
            "date": time.strftime("%Y-%m-%d"),
            "simulated": args.simulated,
            "machine": machine(found, args.python),
            "checks": [],
        }
        self.output = args.output or (self.path(f"{name}.json") if args.simulated else os.path.join(RESULTS, f"{name}.json"))

    @property
    def rows(self):
        return self.result["checks"]

    def path(self, name):
        return os.path.join(self.work, name)

    def left(self):
        return self.deadline - time.monotonic()

    def write(self):
        """The result, whole or as it was; once more in the folder that OUT names, if it names one."""
        outputs = [self.output]
        if os.environ.get("OUT") and os.path.isdir(os.environ["OUT"]) and not self.args.simulated:
            outputs.append(os.path.join(os.environ["OUT"], os.path.basename(self.output)))
        for output in outputs:
            with open(output + ".new", "w") as file:
                json.dump(self.result, file, indent=1)
                file.write("\n")
            os.replace(output + ".new", output)

    def environment(self, numbers=False, memory="8G", **extra):
        environment = clean_environment(extra, threads=None)
        if not self.args.simulated:
            return environment
        return simulated.environment(devices=2, memory=memory, base=environment, build=self.args.build, numbers=numbers)

    def run(self, command, name, castor=True, options=(), watch=None, numbers=False, **extra):
        """Runs a command to its end, in what is left of the check's time; returns its output, and its folder of logs."""
        logs = self.path(f"{name}.log")
        if castor:
            command = [CASTOR, "run", *options, "--log-dir", logs, "--", *command]
        done = run_bounded(command, self.check_ends - time.monotonic(), watch, env=self.environment(numbers, **extra), cwd=self.work)
        text = done.stderr.strip() or done.stdout.strip()
        expect(done.returncode == 0, f"status {done.returncode}: {text[-600:]}")
        return done.stdout, logs

    def add(self, row):
        """A check's row: counted, shown, kept and written."""
        self.failed += row["verdict"] == "FAILED"
        self.rows.append(row)
        shown = {key: value for key, value in row.items() if not isinstance(value, (dict, list)) and key not in ("check", "verdict", "why", "group")}
        print(f"{row['verdict']:8} {row['check']}" + (f": {row['why']}" if row.get("why") else "") + (f"  {shown}" if shown else ""), flush=True)
        self.write()

    def check(self, name, limit_s, function, *arguments):
        """`function(figures, checks, *arguments)` raises Finding or LeftOut, or returns why it was left out."""
        if self.args.only and not any(word in name for word in self.args.only):
            return
        figures, why = {}, None
        begin = time.monotonic()
        if self.left() < 5:
            self.add({"check": name, "verdict": "left out", "why": "no time was left"})
            return
        self.check_ends = begin + min(limit_s, self.left())
        try:
            why = function(figures, self, *arguments)
            verdict = "left out" if why else "ok"
        except LeftOut as error:
            verdict, why = "left out", str(error)
        except Exception as error:  # one check's mistake is not the others'
            verdict, why = "FAILED", str(error) if isinstance(error, Finding) else f"{type(error).__name__}: {error}"
        row = {"check": name, "verdict": verdict, **({"why": why} if why else {}), "seconds": round(time.monotonic() - begin, 1)}
        self.add({**row, **figures})

    def close(self):
        """Prints the last line; returns the exit status."""
        self.write()
        passed = sum(row["verdict"] == "ok" for row in self.rows)
        left_out = sum(row["verdict"] == "left out" for row in self.rows)
        print(f"{passed} passed, {self.failed} failed, {left_out} left out: {os.path.relpath(self.output, ROOT)}", flush=True)
        return 1 if self.failed or not passed else 0


def median(values):
    return statistics.median(values)


def add_arguments(parser, limit_s):
    parser.add_argument("--python", default=os.path.join(ROOT, ".venv", "bin", "python"), help="a Python with torch for CUDA")
    parser.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--simulated", action="store_true", help="on the simulated devices, with tiny sizes; no measurement")
    parser.add_argument("--limit", type=float, default=limit_s, metavar="SECONDS", help="for everything; checks for which no time is left are left out")
    parser.add_argument("--only", action="append", metavar="WORD", help="checks with WORD in their names; again for more")
    parser.add_argument("--host-bytes", type=int, default=0, help="of host memory that the probe may take (default: as much as seems free)")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--output", help="default: in bench/results; simulated: in the build folder")


def begin(args, name, what):
    """The checks; ends the program where there is no device, or no library."""
    args.build = os.path.abspath(args.build)
    found = {"name": "simulated"} if args.simulated else device()
    if isinstance(found, str):
        print(f"{name}: there is no GPU here: {found}", file=sys.stderr)
        sys.exit(NO_DEVICE)
    if not shutil.which(CASTOR):
        sys.exit(f"{name}: {CASTOR} is missing: run make first")
    why = simulated.make(args.python, args.build) if args.simulated else None
    if why:
        sys.exit(f"{name}: {why}")
    return Checks(args, name, what, found)
