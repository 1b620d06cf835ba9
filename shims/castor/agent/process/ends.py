"""Tells the library of the exception that ends the process, for the report.

Python keeps it in sys.last_exc before it calls sys.excepthook, whichever hook the script has set, and nothing of the script is
replaced. It is read when Python begins to shut down: before threads are joined, which may never end. SystemExit is no such exception.

torch.multiprocessing catches the exceptions of the processes that it spawns."""
import atexit
import functools
import os
import sys
import threading

from .. import core
from . import stacks

LETTERS = 600
MESSAGE_LETTERS = 300  # of what the report shows: TRACE_EXCEPTION_MESSAGE_MAX
_python = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_installed = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def _own():
    """The folders of Castor, of PyTorch, and of what computes on simulated devices."""
    others = filter(None, map(sys.modules.get, ("torch", "simulated_numbers")))
    return (core.PACKAGE_FOLDER, *(os.path.dirname(os.path.abspath(module.__file__)) + os.sep for module in others))


def is_installed(path):
    """A file of a package that the script uses, wherever Python keeps those."""
    return any(folder in path for folder in _installed)


def is_file_of_script(path):
    """A file of the script, or of a package that it uses, and not Python's, PyTorch's or ours."""
    return not path.startswith(_own()) and (not path.startswith(_python) or is_installed(path))


def is_script(code):
    return not code.co_filename.startswith(("<frozen ", stacks.UNSEEN)) and is_file_of_script(os.path.abspath(code.co_filename))


def script_line(trace):
    """Where the script was: its innermost line."""
    place = ""
    while trace is not None:
        if is_script(trace.tb_frame.f_code):
            place = f"{os.path.basename(trace.tb_frame.f_code.co_filename)}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return place


def first_line(error):
    """The exception's message, in one line; "": it has none."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # noqa: BLE001 - an exception of the script may not be able to tell itself
        return ""
    if "Original Traceback (most recent call last):" in lines:  # raised in a DataLoader's worker
        lines[0] += " " + lines[-1]
    if "Last error:" in lines[:-1]:  # NCCL's own words, below PyTorch's for the code
        return "NCCL: " + lines[lines.index("Last error:") + 1]
    return lines[0] if lines else ""


def lost_connection(error):
    """Whether gloo, or a collective through the node's memory, raised this because the process at the other end has ended."""
    if not isinstance(error, RuntimeError):
        return False
    text = str(error)
    gloo = "gloo" in text and ("Connection closed" in text or "reset by peer" in text)
    return gloo or "; connection closed by peer" in text


made_by_another = lost_connection  # whether another rank's failure made the exception; a plugin knows more


def tell(error):
    name, message = type(error).__name__, core.shortened(first_line(error).removeprefix("castor: "), MESSAGE_LETTERS)
    core.exception(name.encode(errors="replace"), message.encode(errors="replace"), script_line(error.__traceback__).encode(errors="replace"),
                   made_by_another(error))


def _tell_last():
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if isinstance(error, BaseException):
        tell(error)


def spawned(stock):
    """torch.multiprocessing.spawn._wrap, which stores the exception for the parent, and raises SystemExit while it handles it."""

    @functools.wraps(stock)
    def wrap(*args, **kwargs):
        try:
            return stock(*args, **kwargs)
        except SystemExit as end:
            own = end.__traceback__.tb_next  # the frame of `stock`; none follows if that itself raised it
            if own is not None and own.tb_next is None and end.__context__ is not None:
                tell(end.__context__)
            raise

    return wrap


def install():
    getattr(threading, "_register_atexit", atexit.register)(_tell_last)
