"""Starts a command, bounded in time, and leaves nothing of it running.

torchrun puts its workers into sessions of their own, so processes are found by a mark in their environment.
"""

import os
import signal
import subprocess
import threading
import time
import uuid
from dataclasses import dataclass, replace

import processes
import runner

MARK = "SEMANTICS_RUN"
PRINTED, ERRORS = "stdout.txt", "stderr.txt"
_lock = threading.Lock()
_running, _ending = set(), False


@dataclass
class Finished:
    status: int
    printed: str
    errors: str
    seconds: float
    timed_out: bool = False
    left_running: int = 0


def marked(token):
    return processes.marked(f"{MARK}={token}")


def signal_all(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def end(token):
    """Ends what carries the mark; returns how many there were."""
    first = marked(token)
    signal_all(first, signal.SIGTERM)
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline and marked(token):
        time.sleep(0.1)
    for _ in range(10):
        remaining = marked(token)
        if not remaining:
            break
        signal_all(remaining, signal.SIGKILL)
        time.sleep(0.1)
    return len(first)


def end_all():
    """Ends what other threads run; they start nothing more."""
    global _ending
    with _lock:
        _ending = True
    for token in list(_running):
        end(token)


def read(folder, status):
    """A run that ended there, with its output in files."""
    printed, errors = (open(os.path.join(folder, name), errors="replace") for name in (PRINTED, ERRORS))
    with printed, errors:
        return Finished(status, printed.read(), errors.read(), 0)


def wait(process, seconds):
    """Returns the seconds of CPU that it took; None: it has not ended."""
    until, pause = time.monotonic() + seconds, 0.005
    while time.monotonic() < until:
        ended, status, used = os.wait4(process.pid, os.WNOHANG)
        if ended:
            process.returncode = os.waitstatus_to_exitcode(status)
            return used.ru_utime + used.ru_stime
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return None


def run(command, folder, timeout, environment=None, given=os.devnull, name=""):
    """Runs `command` in `folder`, as what `name` tests; its output goes to files there, so that no pipe can keep us waiting."""
    token = uuid.uuid4().hex
    variables = {"PYTHONUNBUFFERED": "1", **os.environ, **(environment or {}), MARK: token}
    began = time.monotonic()
    timed_out = False
    given, printed, errors = (os.path.join(folder, name) for name in (given, PRINTED, ERRORS))
    with open(given, "rb") as to_read, open(printed, "wb") as out, open(errors, "wb") as err:
        with _lock:
            if _ending:
                raise InterruptedError("everything ends")
            process = subprocess.Popen(
                command, cwd=folder, env=variables, stdin=to_read, stdout=out, stderr=err, start_new_session=True
            )
            _running.add(token)
        try:
            computed = wait(process, timeout)
            timed_out = computed is None
        except BaseException:
            end(token)
            process.wait()
            raise
        finally:
            _running.discard(token)
        if timed_out:
            end(token)
            process.wait()
    seconds = time.monotonic() - began
    runner.note(name or os.path.basename(folder), seconds, computed, 1)
    left = 0
    if not timed_out and marked(token):
        time.sleep(1)  # helpers may end a moment after their parent
        left = end(token) if marked(token) else 0
    ended = read(folder, process.returncode)
    return replace(ended, seconds=seconds, timed_out=timed_out, left_running=left)
