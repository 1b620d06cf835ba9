"""The end of a fork of a process that has imported PyTorch, without Python's own.

Python's would write to each object that was imported, and so copy all pages that the forks share: three quarters of what a small script costs."""
import atexit
import contextlib
import gc
import io
import sys
import threading


def at_once():
    """What Python does besides, when the script is over. The caller ends the process."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for thing in gc.get_objects():  # none of the frozen ones
        if issubclass(type(thing), io.IOBase):  # of a proxy it is the proxy's own
            with contextlib.suppress(Exception):
                thing.flush()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
