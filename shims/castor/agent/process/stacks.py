"""Tells where this process is, when `castor run` asks: the Python stacks of its threads, in a file of the log directory.

The core calls from a thread of its own, and ctypes takes the interpreter lock for it. While it is held nobody else runs
Python, so no frame changes under us; walking frames without it (faulthandler's watchdog, or a signal handler that looks at
all threads) may follow a frame that another thread is freeing. A script that keeps the lock for long, inside C code, answers
late: the core's thread waits, the script does not notice."""
import atexit
import os
import sys
import threading
import time
import traceback

from .. import core

_teller = None  # ctypes keeps no reference to a callback
UNSEEN = "<castor."


def unseen(function):
    """Where a warning of PyTorch's counts its callers to name the script's line, this function around PyTorch's is not one of them:
    Python leaves out what has the words of its import machinery in its file's name (warnings._is_internal_frame)."""
    name = f"{UNSEEN}{function.__code__.co_name} importlib._bootstrap>"
    function.__code__ = function.__code__.replace(co_filename=name)
    return function


def install():
    global _teller
    _teller = core.StackTeller(_tell)
    core.stack_teller_set(_teller)
    # Nobody may call into an interpreter that ends.
    atexit.register(core.stack_teller_set, core.StackTeller())


def _tell(path):
    try:
        text = _describe()
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, text.encode(errors="replace"))
        finally:
            os.close(file)
    except Exception:  # noqa: BLE001 - nobody on this thread could catch it; castor says that there is no answer
        pass


def _describe():
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, own = threading.main_thread().ident, threading.get_ident()
    frames = sys._current_frames()
    parts = [f"process {os.getpid()} at {time.strftime('%Y-%m-%d %H:%M:%S')}\n"]
    for thread in sorted(frames, key=lambda ident: ident != main):  # the main thread first
        if thread != own:
            parts.append(f"{names.get(thread, 'thread')}:\n" + "".join(traceback.format_stack(frames[thread])))
    return "".join(parts)
