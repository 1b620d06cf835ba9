"""How a rank's Python ends while threads of gloo still let go of what they carried.

PyTorch's thread that has carried a collective drops its references to the tensors after it has told the waiting one, and needs
Python's lock for it. Where the script ends before that thread had its turn, Python is shutting down by then, ends a thread
that asks for the lock, and thereby the process: "terminate called without an active exception", after the last step."""
import atexit
import os
import time

THREAD = "pt_gloo_runloop"  # PyTorch's name of these threads
LOOK_SECONDS = 0.001
# Such a thread is let run as long as this, on a machine that has no processor for it. One that is in a collective which others
# never join sleeps, and is not waited for.
LONGEST_SECONDS = 5


def _threads():
    """Of PyTorch's threads that carry collectives: (which, its state, the nanoseconds that it has run)."""
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


def _await_idle():
    """Python's lock is free while this sleeps: a thread that sleeps as well, and has not run since the last look, waits for
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
    atexit.register(_await_idle)
