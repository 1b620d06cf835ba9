"""Writes the Python stacks of this process's threads to a file of the log directory, when `castor run` asks for them.

The core calls from a thread of its own, for which ctypes takes the interpreter lock. While it is held no other thread runs
Python, so no frame changes. Walking frames without it (faulthandler's watchdog, or a signal handler that looks at all threads)
may follow a frame that another thread is freeing. If the script keeps the lock for long, inside C code, the answer is late: the
core's thread waits, the script does not notice."""
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
    """Hides a wrapper from PyTorch's warnings, which count their callers to name the script's line. Python skips frames whose
    file name has the words of its import machinery (warnings._is_internal_frame), so the wrapper gets such a name."""
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
    texts = [f"process {os.getpid()} at {time.strftime('%Y-%m-%d %H:%M:%S')}\n"]
    for thread in sorted(frames, key=lambda ident: ident != main):  # the main thread first
        if thread != own:
            texts.append(f"{names.get(thread, 'thread')}:\n" + "".join(traceback.format_stack(frames[thread])))
    return "".join(texts)
