"""Runs a job of several processes, bounded, and reads what it costs from outside: memory and foreign CPU time.

Only the standard library is used, so that the interpreter of the driver needs no torch.
"""

import argparse
import ctypes
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
CASTOR = os.path.join(ROOT, "build", "bin", "castor")

# What would change a measured job if it came from the caller's environment.
FOREIGN_ENVIRONMENT = ("CASTOR_", "MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD", "OMP_", "MKL_", "PYTHONPATH")

PR_SET_CHILD_SUBREAPER = 36


def parser(description, bench, rounds, timeout, job="one run"):
    """The command line, with the arguments that benches share. timeout: of `job`, in seconds."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--python", default=os.path.join(ROOT, ".venv", "bin", "python"), help="interpreter with what the bench trains by (torch, safetensors)")
    made.add_argument("--rounds", type=int, default=rounds)
    made.add_argument("--timeout", type=float, default=timeout, help=f"seconds for {job}")
    made.add_argument("-o", "--output", default=os.path.join(HERE, "results", f"{bench}.json"))
    return made


def write(results, path, **layout):
    """Writes a file of results, whole or not at all."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path + ".part", "w", encoding="ascii") as file:
        json.dump(results, file, **layout)
        file.write("\n")
    os.replace(path + ".part", path)


def torch_version(interpreter):
    return subprocess.run([interpreter, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=True).stdout.strip()


def head(bench, interpreter, load):
    """The head of a file of results; load: the machine's, before the bench."""
    return {
        "bench": bench,
        "command": " ".join([os.path.relpath(os.path.abspath(sys.argv[0]), ROOT), *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "load": max(load, os.getloadavg()[0])},
        "versions": {"torch": torch_version(interpreter), "libc": " ".join(platform.libc_ver())},
    }


def clean_environment(extra=None, threads=1):
    """The caller's environment without what would change a measured job. threads: per process; None: its own choice."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN_ENVIRONMENT)}
    if threads:
        environment["OMP_NUM_THREADS"] = str(threads)
    environment.update(extra or {})
    return environment


def torchrun(interpreter, ranks):
    return [interpreter, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


def in_one_job(bench, interpreter, ranks, rank, arguments, timeout):
    """Runs rank.py OUTPUT ARGUMENTS... on ranks of one job under Castor without a plugin. Returns (the head of a file of results, what the ranks
    have measured)."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="castor-bench-") as folder:
        output = os.path.join(folder, "results.json")
        castor = [CASTOR, "run", "--plugin", "none", "--log-dir", os.path.join(folder, "log"), "--"]
        subprocess.run([*castor, *torchrun(interpreter, ranks), rank, output, *map(str, arguments)], env=clean_environment(), timeout=timeout, check=True)
        with open(output) as file:
            measured = json.load(file)
    return head(bench, interpreter, load), measured


def memory_of(pid):
    """Bytes of a process by kind: {"pss", "anon", "shmem", "file"}; None when it has gone.

    The kernel's figures are proportional: a page that k processes map counts 1/k for each of them.
    """
    fields = {"Pss:": "pss", "Pss_Anon:": "anon", "Pss_Shmem:": "shmem", "Pss_File:": "file"}
    found = {}
    try:
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            for line in rollup:
                words = line.split()
                if words[0] in fields:
                    found[fields[words[0]]] = int(words[1]) * 1024
    except (OSError, IndexError):
        return None
    return found if "pss" in found else None


def memory_of_all(pids):
    """The sum of memory_of over `pids`; None when one of them has gone."""
    total = {}
    for pid in pids:
        memory = memory_of(pid)
        if memory is None:
            return None
        for kind, value in memory.items():
            total[kind] = total.get(kind, 0) + value
    return total


def pss_of_job(root):
    """Bytes of PSS of a process and all that it has started; what has just gone does not count."""
    found = [memory_of(pid) for pid in (root, *(pid for pid, _ in descendants(root)))]
    return sum(memory["pss"] for memory in found if memory)


def available_bytes():
    """Memory that new processes can have without anything being pushed out, as the kernel estimates it."""
    with open("/proc/meminfo") as meminfo:
        for line in meminfo:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def process_table():
    """{pid: (parent, start time)} of every process that can be seen."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as stat:
                    words = stat.read().rpartition(")")[2].split()
            except OSError:
                continue
            table[int(name)] = (int(words[1]), int(words[19]))
    return table


def descendants(root):
    """The processes that `root` started, directly or not: [(pid, start time)]."""
    table = process_table()
    children = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found, queue = [], [root]
    while queue:
        for pid in children.get(queue.pop(), ()):
            found.append((pid, table[pid][1]))
            queue.append(pid)
    return found


def command_of(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as cmdline:
            return [word.decode(errors="replace") for word in cmdline.read().split(b"\0")[:-1]]
    except OSError:
        return []


def processes_running(script, root):
    """`root` and its descendants, those that are Python interpreters running `script` itself and no launcher."""
    found = []
    for pid in [root, *(pid for pid, _ in descendants(root))]:
        words = command_of(pid)
        arguments = [word for word in words[1:] if not word.startswith("-")]
        if words and os.path.basename(words[0]).startswith("python") and arguments[:1] == [script]:
            found.append(pid)
    return sorted(found)


def prepare_driver():
    """Called once by a program that runs jobs: nothing that they start outlives it, however it is told to end."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans become its children, for Job.stop to collect
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # Job.stop stands in `finally` clauses


def cpu_busy_seconds():
    """CPU seconds that the whole machine has worked."""
    with open("/proc/stat") as stat:
        words = stat.readline().split()
    user, nice, system, _, _, irq, softirq, steal = (int(word) for word in words[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


class Job:
    """One command with all that it starts, its output in a file.

    `finished(timeout)` waits in short naps and calls `watch` at each; `stop` ends what is left.
    """

    NAP_SECONDS = 0.15

    def __init__(self, command, output_path, environment):
        self.command, self.output_path = command, output_path
        self.known = {}
        self.begin = time.monotonic()
        self.cpu_before = cpu_busy_seconds()
        self.own_before = sum(os.times()[:4])
        with open(output_path, "wb") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment,
                start_new_session=True)

    @property
    def pid(self):
        return self.process.pid

    def finished(self, timeout, watch=None):
        """True when the command has ended by itself; False when `timeout` seconds passed since its start or
        `watch()` returned something true."""
        look_at = 0.0
        while self.process.poll() is None:
            now = time.monotonic()
            if now >= look_at:  # seldom: it reads all of /proc while the job is being timed
                self.known.update(descendants(self.pid))
                look_at = now + 1.0
            if now - self.begin > timeout or (watch and watch()):
                return False
            time.sleep(self.NAP_SECONDS)
        return True

    def stop(self):
        """Ends the command and all that it started: SIGTERM, ten seconds, SIGKILL. Returns how many had to be killed."""
        if self.process.poll() is None:
            self.known.update(descendants(self.pid))
            self.process.terminate()
            deadline = time.monotonic() + 10
            while self.process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            if self.process.poll() is None:
                self.process.kill()
        self.process.wait()
        table, killed = process_table(), 0
        for pid, start in self.known.items():
            if pid in table and table[pid][1] == start:
                try:
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
                    os.waitpid(pid, 0)  # orphans are this process's children after prepare_driver
                except (ProcessLookupError, ChildProcessError):
                    pass
        return killed

    def foreign_cpu_fraction(self):
        """The part of the machine's CPU time since the start that went to processes that are not this job's."""
        elapsed = time.monotonic() - self.begin
        busy = cpu_busy_seconds() - self.cpu_before
        own = sum(os.times()[:4]) - self.own_before
        return max(0.0, busy - own) / (elapsed * os.cpu_count()) if elapsed else 0.0

    def output(self):
        with open(self.output_path, errors="replace") as output:
            return output.read()


def bare_import_memory(interpreter, ranks, by_torchrun, folder, before=()):
    """memory_of_all of `ranks` processes that only import torch, started and thereby sharing as the measured ranks do.

    before: words of the command that stand before the launcher's. `folder` is empty and takes their files. Raises RuntimeError when they do not come up.
    """
    script = [os.path.join(HERE, "bare.py"), folder]
    if by_torchrun:
        command = [*before, *torchrun(interpreter, ranks), *script]
    else:
        one = shlex.join([interpreter, *script])
        command = ["sh", "-c", f"{one} & " * ranks + "wait"]
    job = Job(command, os.path.join(folder, "output.txt"), clean_environment())
    memory = {}

    def watch():
        pids = [int(name[4:]) for name in os.listdir(folder) if name.startswith("bare")]
        if len(pids) == ranks:
            time.sleep(0.5)
            memory.update(memory_of_all(pids) or {})
        return bool(memory)

    try:
        job.finished(120, watch)
        with open(os.path.join(folder, "done"), "w"):
            pass
        job.finished(150)
    finally:
        job.stop()
    if not memory:
        raise RuntimeError(f"`import torch` failed under {interpreter}: {last_error_line(job.output())}")
    return memory


def last_error_line(text):
    """The line that says what went wrong: of the first traceback, else the last line that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for position, line in enumerate(lines):
        if "Traceback (most recent call last)" in line:
            for following in lines[position + 1:]:
                head = following.split("]: ")[-1].split(":")[0]
                if head and " " not in head and head[-1].isalpha() and head.endswith(("Error", "Exception", "Interrupt")):
                    return following[:400]
    for line in reversed(lines):
        if "Error" in line or "castor:" in line:
            return line[:400]
    return lines[-1][:400] if lines else "no output"
