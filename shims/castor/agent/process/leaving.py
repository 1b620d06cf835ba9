"""Waits, when a rank's Python ends, for threads of gloo that still release tensors.

A thread of PyTorch that has run a collective first wakes the waiting thread. Then it drops its references to the tensors, for
which it needs Python's lock. If the script ends before that, Python is shutting down: it ends a thread that asks for the lock,
and thereby the process: "terminate called without an active exception", after the last step."""
import atexit
import os
import time

THREAD = "pt_gloo_runloop"  # PyTorch's name of these threads
LOOK_SECONDS = 0.001
# The longest wait for such a thread, on a machine that has no processor for it. A thread in a collective that the other ranks
# never join sleeps: nothing waits for it.
LONGEST_SECONDS = 5


def _threads():
    """(id, state, nanoseconds that it has run) of each of PyTorch's threads that run collectives."""
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/stat", encoding="utf-8", errors="replace") as file:
                name, rest = file.read().split("(", 1)[1].rsplit(") ", 1)
            if name == THREAD:
                with open(f"/proc/self/task/{task}/schedstat", encoding="utf-8") as file:
                    found.append((task, rest[0], file.read().split()[0]))
        except (OSError, IndexError):
            continue  # it has ended
    return found


def await_idle():
    """Python's lock is free while this sleeps. So a thread that sleeps as well, and has not run since the last look, waits for
    work and not for the lock."""
    until = time.monotonic() + LONGEST_SECONDS
    before = None
    while time.monotonic() < until:
        seen = _threads()
        if seen == before and all(state == "S" for _, state, _ in seen):
            return
        before = seen
        time.sleep(LOOK_SECONDS)


def install():
    atexit.register(await_idle)
