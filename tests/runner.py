"""What the suites share: which tests run, how much of them, and the closing line `N passed, N failed`."""
import argparse
import collections
import concurrent.futures
import contextlib
import ctypes.util
import importlib.util
import io
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import start_ranks

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
START_RANKS = start_ranks.__file__
# `short`: what `make test` has time for; `all`: everything, for `make test-all` (docs/testing.md).
LENGTH = os.environ.get("TEST_LENGTH", "short")
if LENGTH not in ("short", "all"):
    sys.exit(f"TEST_LENGTH={LENGTH}: short or all")


def arguments(description, option, *built):
    """The command line: `option` names what is tested, by default the file `built` below the root, and NAMEs select tests.
    Returns the path and the names. Ends the program where nothing is built."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(option, dest="tested", default=os.path.join(ROOT, *built))
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    if not os.access(args.tested, os.X_OK):
        sys.exit(f"{args.tested} is missing; run make first")
    return os.path.abspath(args.tested), args.names


# Shells start what runs in their background so, and jobs would inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What would change a job if it came from the caller's environment.
FOREIGN = ("CASTOR_", "LD_PRELOAD", "PYTHONPATH", "RANK", "WORLD_SIZE", "MASTER_", "LOCAL_", "TORCH_")


def environment(*foreign):
    """The caller's, without what would change a job, nor names that begin like one of `foreign`; one thread a process."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN + foreign)}
    return dict(clean, OMP_NUM_THREADS="1")


def ranks(count):
    """The begin of a command that starts a script's ranks: torchrun's environment without torchrun's `import torch`. What is
    torchrun's own (its end, restarts, several nodes) is tested with torchrun, and so are whole scripts of `semantics`."""
    return [sys.executable, START_RANKS, str(count)]


def script(plugin, environment=os.environ):
    """The begin of a command that runs a script as one process under the plugin."""
    return ranks(0) if start_ranks.server(plugin, environment) else [sys.executable]


def nproc(count, command):
    """The options of `castor run` for so many ranks of a script's command. Castor does not fork those that come from a server."""
    return ["--nproc", str(count), *(["--set", "CASTOR_FORK=off"] if START_RANKS in command else [])]


def on_devices(count):
    """The begin of a command that runs on so many simulated devices, with numbers."""
    return [sys.executable, os.path.join(ROOT, "tests", "sim", "simulate"), "--devices", str(count), "--numbers", "--"]


SIMULATED = on_devices(2)


@contextlib.contextmanager
def _folder_of_servers():
    with tempfile.TemporaryDirectory(prefix="castor-ranks-") as folder:
        os.environ["SERVERS_OF_RANKS"] = folder
        try:
            yield folder
        finally:
            del os.environ["SERVERS_OF_RANKS"]


@contextlib.contextmanager
def served(castor, *plugins, under=(), modules=(), **variables):
    """Ranks under these plugins are forks of one process each (rank_server.py) meanwhile. `under`: the begin of that process's command,
    on simulated devices. `modules`: what it imports beside PyTorch. `variables`: more of its environment, which theirs must have as well."""
    with contextlib.ExitStack() as stack:
        folder = os.environ.get("SERVERS_OF_RANKS") or stack.enter_context(_folder_of_servers())
        for plugin in plugins:
            place = os.path.join(folder, start_ranks.name_of(plugin, {"SIM_DEVICES"} if under else variables))
            command = [castor, "run", "--plugin", plugin, "--log-dir", f"{place}-log", "--", *under, "env", "CASTOR_FORK_SERVER=1", sys.executable,
                       os.path.join(ROOT, "tests", "rank_server.py"), place, *modules]
            with open(f"{place}-errors", "w") as errors:
                own = {name: value for name, value in {**environment(), **variables}.items() if name not in start_ranks.SERVERS_OWN}
                server = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors, env=own)
            stack.callback(server.communicate)  # its input ends, and it with it
            deadline = time.monotonic() + 60
            while not os.path.exists(place) and server.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            if not os.path.exists(place):
                server.kill()
                with open(f"{place}-errors") as errors:
                    raise RuntimeError(f"the server of ranks does not start:\n{errors.read()}")
        yield


def long(test):
    """Marks a test for which the short length has no time. What is named on the command line runs in both."""
    test.long = True
    return test


def leave(count, what="tests"):
    """Says what the short length leaves out; scripts/tally.sh adds it up."""
    if count:
        print(f"left to make test-all: {count} {what}", flush=True)


left_out = []  # why, once for each test that cannot run on this machine


def say_left_out():
    """What was left out since the machine lacks something, in one line; scripts/tally.sh shows it at the end."""
    if left_out:
        print("left out here: " + "; ".join(f"{count} ({why})" for why, count in sorted(collections.Counter(left_out).items())), flush=True)


def close(passed, failed):
    """The closing lines, and the end of the program."""
    say_left_out()
    print(f"{passed} passed, {failed} failed", flush=True)
    sys.exit(1 if failed or not passed else 0)


def lacking(what):
    """The failure of tests that need what `make setup-tests` provides; what it cannot (a kernel's features, a browser) is skipped."""
    return AssertionError(f"{what}; `make setup-tests` installs what the tests need")


def need_packages(*names):
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise lacking(f"{sys.executable} has no {', '.join(missing)}")


def program(name):
    """The path of a program that `make setup-tests` installs."""
    path = shutil.which(name)
    if not path:
        raise lacking(f"there is no {name}")
    return path


def library(name):
    """The library of an allocator that `make setup-tests` installs."""
    path = ctypes.util.find_library(name)
    if not path:
        raise lacking(f"there is no lib{name}")
    return path


def cannot_run(why):
    """Ends a suite whose tests cannot run, as one failure."""
    print(f"FAILED: {why}")
    close(0, 1)


def leave_out_all(why):
    """Ends a suite that this machine cannot run whatever is installed."""
    print(f"left out here: all ({why})\n0 passed, 0 failed", flush=True)
    sys.exit()


def flat(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test


def is_long(test):
    return getattr(getattr(test, test._testMethodName, None), "long", False)


def in_folder(folder):
    return unittest.defaultTestLoader.discover(folder, pattern="test_*.py", top_level_dir=folder)


def note(test, seconds, computed, processes):
    """A row of the file that `make test` keeps: what a test took, in seconds and in seconds of CPU (None: nobody knows), and how many processes
    it started itself. What a server forks for it counts nowhere."""
    if os.environ.get("TEST_TIMES"):
        row = (os.path.basename(os.path.dirname(os.path.abspath(sys.argv[0]))), test, f"{seconds:.1f}", "-" if computed is None else f"{computed:.1f}", str(processes))
        with open(os.environ["TEST_TIMES"], "a") as file:
            file.write("\t".join(row) + "\n")


class Cost:
    """What this process and its ended children have taken so far."""

    started = 0

    def __init__(self):
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        self.seconds, self.computed = time.monotonic(), sum(one.ru_utime + one.ru_stime for one in used)
        self.processes = Cost.started

    def since(self, before):
        return self.seconds - before.seconds, self.computed - before.computed, self.processes - before.processes


def _count(event, arguments):
    Cost.started += event in ("subprocess.Popen", "os.fork", "os.posix_spawn")


sys.addaudithook(_count)


class Timed(unittest.TextTestResult):
    """Says what each test took, and counts those that passed: a class whose set-up fails has run none."""

    passed = 0

    def startTest(self, test):  # noqa: N802
        self.began = Cost()
        super().startTest(test)

    def stopTest(self, test):  # noqa: N802
        note(test.id(), *Cost().since(self.began))
        super().stopTest(test)

    def addSuccess(self, test):  # noqa: N802
        unittest.TestResult.addSuccess(self, test)
        self.passed += 1
        self.stream.writeln(f"ok [{Cost().since(self.began)[0]:.1f} s]")


def judged(tests, stream):
    """Runs the tests one after another; returns how many passed and failed."""
    result = unittest.TextTestRunner(stream=stream, verbosity=2, resultclass=Timed).run(unittest.TestSuite(tests))
    left_out.extend(why for _, why in result.skipped)
    # A test may fail twice: by what it says, and by what it leaves behind.
    failed = len({test.id() for test, _ in result.failures + result.errors}) + len(result.unexpectedSuccesses)
    return result.passed, failed


groups = []  # of tests, for the processes that run them


def judged_apart(number):
    stream = io.StringIO()
    left_out.clear()
    return *judged(groups[number], stream), stream.getvalue(), left_out


def in_two_processes(tests, alike):
    """As judged(): in two processes at a time, with those in one that are `alike` since they share what they make."""
    together = {}
    for test in tests:
        together.setdefault(alike(test), []).append(test)
    groups[:] = together.values()
    passed = failed = 0
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        for done in concurrent.futures.as_completed([pool.submit(judged_apart, number) for number in range(len(groups))]):
            more_passed, more_failed, output, more_left_out = done.result()
            left_out.extend(more_left_out)
            passed, failed = passed + more_passed, failed + more_failed
            print(output, end="", flush=True)
    return passed, failed


def by_class(test):
    return type(test)


def by_name(test):
    return test.id()


def run(everything, names, alike=None):
    """Runs the chosen tests, and ends the program with their status; with `alike`, in_two_processes()."""
    tests = [test for test in flat(everything) if not names or any(name in test.id() for name in names)]
    chosen = [test for test in tests if names or LENGTH == "all" or not is_long(test)]
    passed, failed = in_two_processes(chosen, alike) if alike else judged(chosen, sys.stdout)
    leave(len(tests) - len(chosen))
    close(passed, failed)
