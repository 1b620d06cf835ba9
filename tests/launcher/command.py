"""What the tests share: a folder and a mark of its own for each test, castor in it, and a look at what is left."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

import processes

BINARY = os.environ["LAUNCHER_TEST_BINARY"]
LIBRARY = os.path.realpath(os.path.join(os.path.dirname(BINARY), "../lib/libcastor.so"))
SONAME = os.readlink(os.path.join(os.path.dirname(BINARY), "../lib/libcastor.so"))
LIMIT_S = 30  # for anything that must happen; reached only by a failure


def ranks(count):
    """The options for that many ranks, which do not import PyTorch, so that they are started one by one (tests/forking has the others).
    What others than rank 0 write is private to them, but for the log directory."""
    return ["--plugin", "ddp", "--nproc", str(count), "--log-dir", "logs", "--set", "CASTOR_FORK=off"]


def wait_for(condition, what):
    """Waits until `condition()` is true and returns its value."""
    end = time.monotonic() + LIMIT_S
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"in vain: {what}")
        time.sleep(0.02)


def is_killed(pid):
    """Whether SIGKILL is on its way to the process."""
    try:
        with open(f"/proc/{pid}/status") as file:
            masks = [int(line.split()[1], 16) for line in file if line.startswith(("SigPnd:", "ShdPnd:"))]
    except OSError:
        return False
    return any(mask >> (signal.SIGKILL - 1) & 1 for mask in masks)


class CommandTest(unittest.TestCase):
    """Each test has a folder (`self.folder`, the working directory of castor). Processes that a test starts carry its
    mark in their environment; none may be left when it ends."""

    leaves = False  # a test that leaves processes on purpose sets this, and ends them with end_marked

    def setUp(self):
        self.mark = f"LAUNCHER_TEST_MARK={uuid.uuid4().hex}"
        self.folder = os.path.realpath(tempfile.mkdtemp(prefix="castor-launcher-"))
        self.started = []
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.addCleanup(self.check_nothing_left)

    def check_nothing_left(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream:
                    stream.close()
        left = [] if self.leaves else self.left_running()
        names = [" ".join(processes.words(pid)) or f"process {pid}" for pid in left]
        self.end_marked()
        self.assertEqual(names, [], "processes left running")

    def left_running(self):
        """Those that bear the mark, but for what has been killed and needs a moment, on a busy machine, to be gone."""
        left, deadline = self.marked(), time.monotonic() + 30
        while left and time.monotonic() < deadline:
            killed = [pid for pid in left if is_killed(pid)]
            time.sleep(0.1)
            left = self.marked()
            if not killed:
                break
        return left

    def marked(self):
        return processes.marked(self.mark)

    def end_marked(self):
        for pid in self.marked():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        wait_for(lambda: not self.marked(), "the test's processes to end")

    def environment(self, changes):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LAUNCHER_TEST")}
        for name in ("PYTHONPATH", "LD_PRELOAD", "OMP_NUM_THREADS", "PYTHONHASHSEED"):
            environment.pop(name, None)
        environment.update([self.mark.split("=")])
        environment.update(changes)
        return {name: value for name, value in environment.items() if value is not None}

    def start(self, *arguments, binary=BINARY, **options):
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        options.setdefault("cwd", self.folder)
        environment = self.environment(options.pop("env", {}))
        process = subprocess.Popen([binary, *arguments], env=environment, text=True, **options)
        self.started.append(process)
        return process

    def castor(self, *arguments, input=None, **options):
        """Runs castor to its end. Returns status, standard output and lines of standard error."""
        process = self.start(*arguments, stdin=subprocess.PIPE if input is not None else subprocess.DEVNULL, **options)
        try:
            out, err = process.communicate(input, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"castor {' '.join(arguments)} did not end")
        return process.returncode, out, err.splitlines()

    def path(self, name):
        return os.path.join(self.folder, name)

    def script(self, name, text, mode=0o755):
        with open(self.path(name), "w") as file:
            file.write(text)
        os.chmod(self.path(name), mode)
        return self.path(name)

    def python(self, text):
        """The command line of a Python script with this text."""
        return [sys.executable, self.script(f"script{uuid.uuid4().hex[:6]}.py", text)]

    def text(self, name):
        try:
            with open(self.path(name)) as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def wait_for_files(self, *names):
        wait_for(lambda: all(os.path.exists(self.path(name)) for name in names), f"files {names}")
