"""How a failing rank ends. A rank that an exception ends tells the other ranks which exception. Castor's own errors are printed
in one line, once. A rank that ends because of another one says so in one line, with its place in the script, unless another
rank has said the same. It lets the other rank end first: that rank's traceback and exit status matter."""
import atexit
import ctypes
import hashlib
import io
import os
import sys
import time

import torch

from .. import core
from ..common import store
from . import ends, launchers

FIRST_SECONDS = 3.0  # the longest that a rank waits for the end of the rank where the failure began
LOST_SECONDS = 1.0  # ... and, after a closed connection, for news of the rank that has ended


def _tell_place(out, size):
    """For the core: writes where the calling thread is, in the form of ends.script_line."""
    frame = sys._getframe()
    while frame is not None and not ends.is_script(frame.f_code):
        frame = frame.f_back
    place = "" if frame is None else f"{os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno}"
    text = place.encode(errors="replace")[:size - 1] + b"\0"
    ctypes.memmove(out, text, len(text))


def _cause(kind, reason, place):
    """The same number on every rank that ends by the same exception. An interrupt is the same one at any place."""
    said = reason if kind is KeyboardInterrupt else f"{reason}, in {place}"
    return int.from_bytes(hashlib.blake2b(said.encode(), digest_size=8).digest(), "little")


def _reason(kind, error):
    """The exception in one line."""
    if issubclass(kind, core.Error):
        return str(error).removeprefix("castor: ")
    message = ends.first_line(error)
    return core.shortened(f"{kind.__name__}: {message}", ends.LETTERS) if message else kind.__name__


def _said_by_others():
    """(rank, why, cause) of another rank's failure or end, if it keeps the ranks from going on; or None."""
    for group in store.groups():
        failure = group.failure()
        if failure is not None and failure[0] not in (-1, group.rank):
            return *failure, core.failure_cause(group.handle, failure[0])
    return None


def _who_was_lost():
    until = time.monotonic() + LOST_SECONDS
    while True:
        said = _said_by_others()
        if said is not None or time.monotonic() > until:
            return said
        time.sleep(0.05)  # a process closes its connections before it has ended


def _made_by_another(error):
    """Whether another rank's failure made this exception; ranks that have parted have failed themselves."""
    told = isinstance(error, core.GroupError) and not isinstance(error, core.PartedError)
    return ends.lost_connection(error) or told and _said_by_others() is not None


def _line(kind, error, reason, place):
    """This rank's message, if another rank is the cause or has said the same before (then perhaps empty); else None."""
    if issubclass(kind, core.PartedError):
        return str(error)
    if issubclass(kind, core.GroupError):
        return f"{error} (here: {place})"
    if ends.lost_connection(error):
        said = _who_was_lost()
        return said and f"castor: {said[1]} (here: {place})"
    said = _said_by_others()
    if said is not None and said[2] == _cause(kind, reason, place):
        if issubclass(kind, core.Error):
            return ""  # it has been said
        return f"castor: {reason}, in {place}, as on rank {said[0]}"
    return None


def _say(text, rank):
    """Prints the text. Under `--nproc` only rank 0's standard error is shown, so other ranks print through the core."""
    if rank:
        core.say(text.encode(errors="replace"))
    else:
        sys.stderr.write(text)
        sys.stderr.flush()


def _with_rank(hook, rank):
    """`hook`, with the rank before each line, and all lines in one write: the ranks share standard error. For ranks of a
    process group PyTorch's own hook adds the rank."""

    def write(*args):
        real, sys.stderr = sys.stderr, io.StringIO()
        try:
            hook(*args)
        finally:
            said, sys.stderr = sys.stderr.getvalue(), real
        _say("".join(f"[rank{rank}]: {line}" for line in said.splitlines(keepends=True)), rank)

    return write


def _fail(kind, reason, place):
    """Tells the other ranks. If several ranks fail, the first one counts."""
    more = "" if issubclass(kind, core.Error) else "; its traceback tells more"
    for group in store.groups():
        core.fail(group.handle, f"{reason}, in {place}{more}".encode(), _cause(kind, reason, place))


def _wrap(hook, single_job):
    def excepthook(kind, error, trace):
        if not store.active() or not (store.groups() or single_job or issubclass(kind, core.Error)):
            return hook(kind, error, trace)
        reason, place = _reason(kind, error), ends.script_line(trace)
        own = issubclass(kind, core.Error)  # Castor's own error: the traceback would show Castor's files
        if own and not issubclass(kind, core.GroupError):
            _fail(kind, reason, place)  # first, so that one rank prints an error that several have
        line = _line(kind, error, reason, place)

        def tell(*args):
            if core.options.log_level == "debug" or line is None and not own:
                hook(*args)
            elif line != "":
                text = line or f"castor: {reason} (here: {place})"
                if not core.said(text.encode(errors="replace")):
                    sys.stderr.write(text + "\n")

        if single_job is not None and not single_job.distributed:
            tell = _with_rank(tell, single_job.rank)
        tell(kind, error, trace)
        if missing := launchers.why_missing(error):
            core.log(0, missing.encode())
        if line is None and not own:
            _fail(kind, reason, place)
        for group in store.groups():
            atexit.register(core.blamed_wait, group.handle, FIRST_SECONDS)

    return excepthook


_teller = core.LineReader(_tell_place)  # ctypes keeps no reference to a callback


def install(single_job):
    """`single_job`: the ranks of a single-process script, None for other scripts."""
    ends.made_by_another = _made_by_another
    core.line_reader_set(_teller)
    atexit.register(core.line_reader_set, core.LineReader())  # nobody may call into an interpreter that ends
    sys.excepthook = _wrap(sys.excepthook, single_job)
