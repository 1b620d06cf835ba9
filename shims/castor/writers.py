"""Who writes files under `castor run --nproc N`: rank 0 alone, as the single process would.

What writes whole files (torch.save, safetensors) lets the other ranks wait until rank 0 has written, and what the script
then renames or removes, rank 0 renames or removes for all; of what it copies, each rank puts a whole file in place; what
writes logs (TensorBoard) is quiet on the others; any other file that another rank opens for writing is reported."""
import functools
import os
import shutil
import struct
import sys
import time

import torch

from . import core, store

LOOK_SECONDS = 0.002  # between two looks at whether rank 0 has renamed or removed a file
_written = {}  # path of a file that rank 0 wrote for all: which file it is
_copied = set()  # paths of files that each rank copied from those


def install(job):
    torch.save = torch.serialization.save = _once(job, torch.save, 1, "torch.save")
    shutil.copyfile = _whole(job, shutil.copyfile)
    if job.rank:
        # wandb reads it when a run begins, often before anything else of the script is seen.
        os.environ.setdefault("WANDB_MODE", "disabled")
        _report_files(job)
        for name in ("rename", "replace", "remove", "unlink"):
            setattr(os, name, _left_to_rank_0(job, getattr(os, name)))


def install_late(job):
    """Covers the libraries that the script has imported since."""
    if "safetensors.torch" in sys.modules and "safetensors" not in job.said:
        job.said.add("safetensors")
        library = sys.modules["safetensors.torch"]
        # save_file, which others import by name, looks it up at each call.
        library.serialize_file = _once(job, library.serialize_file, 1, "safetensors' save_file")
    if not job.rank:
        return
    for name in ("torch.utils.tensorboard.writer", "tensorboardX.writer"):
        if name in sys.modules and name not in job.said and hasattr(sys.modules[name], "FileWriter"):
            job.said.add(name)
            _quiet_event_files(job, sys.modules[name])


def _takes_part(job):
    return not job.distributed and store.active() and job.synchronizer is not None


def _once(job, write, position, name):
    """`write`, whose argument at `position` is the file: on rank 0 only, while the others wait."""

    @functools.wraps(write)
    def write_once(*args, **kwargs):
        target = args[position] if len(args) > position else kwargs.get("f", kwargs.get("filename"))
        if not _is_file(target) or not _takes_part(job):
            return write(*args, **kwargs)
        result = None
        core.place_set(job.group.handle, core.PLACE_SAVE)
        try:
            job.group.barrier(name)  # the others may still look for a file of this name, which rank 0 has removed
            if job.rank == 0:
                result = write(*args, **kwargs)
            _remember(job, target)
            job.group.barrier(name)
        finally:
            core.place_set(job.group.handle, core.PLACE_SCRIPT)
        return result

    return write_once


def _which(path):
    """What tells a file from another that is at its place later; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return struct.pack("<3Q", found.st_dev, found.st_ino, found.st_mtime_ns)


def _path(target):
    """Of a file that is named; None of an open one."""
    return os.path.abspath(os.fsdecode(target)) if isinstance(target, (str, bytes, os.PathLike)) else None


def _remember(job, target):
    """Rank 0 says which file it is: when another rank looks, it may be gone."""
    path = _path(target)
    if path:
        which = _which(path) if job.rank == 0 else None
        _written[path] = job.group.broadcast(which or bytes(24), "a file that was written")


def _left_to_rank_0(job, change):
    """`change`, a function that renames or removes a file, on another rank than 0. What rank 0 wrote for all is changed by
    rank 0 alone: the second would find nothing there. Here the call ends when that has been done. No rank waits for a call
    of this one's: a script may well rename on rank 0 only, or remove what it finds."""

    @functools.wraps(change)
    def change_once(*args, **kwargs):
        paths, which = [_path(arg) for arg in args], None
        if _written and not kwargs and all(paths) and _takes_part(job):
            which = _written.pop(paths[0], None)
        if which is None:
            return change(*args, **kwargs)
        until = time.monotonic() + float(core.option_text("CASTOR_TIMEOUT"))
        while _which(paths[0]) == which and job.group.failure() is None:
            if time.monotonic() > until:
                return change(*args)  # rank 0 leaves it to this rank
            time.sleep(LOOK_SECONDS)
        for path in paths[1:]:
            _written[path] = which
        return None

    if change in os.supports_dir_fd:
        os.supports_dir_fd.add(change_once)
    return change_once


def _whole(job, copy):
    """shutil.copyfile: a copy of what rank 0 wrote for all is made beside its place and put there whole, since every rank
    makes one: they are the same, and no rank finds one half written."""

    @functools.wraps(copy)
    def copy_whole(src, dst, *, follow_symlinks=True):
        source, place = _path(src), _path(dst)
        shared = source in _written or source in _copied
        if not shared or place in (None, source) or os.path.islink(place) or not follow_symlinks or not _takes_part(job):
            return copy(src, dst, follow_symlinks=follow_symlinks)
        part = os.path.join(os.path.dirname(place), f".{os.path.basename(place)}.{os.getpid()}")
        job.said.add(part)  # nothing to report: it is this rank's own
        try:
            copy(src, part)
            if os.path.exists(place):
                shutil.copymode(place, part)
            os.replace(part, place)
            _copied.add(place)
        finally:
            if os.path.exists(part):
                os.remove(part)
        return dst

    return copy_whole


def _is_file(target):
    if isinstance(target, (str, bytes)) or hasattr(target, "__fspath__"):
        return True
    try:
        target.fileno()
        return True
    except (OSError, AttributeError, ValueError):
        return False


def _quiet_event_files(job, module):
    """Event files are named after the process: those of other ranks would be further curves of the same name. One that
    was opened before this keeps its header alone."""

    class NoEvents:
        def __init__(self, directory):
            self.directory = directory

        def get_logdir(self):
            return self.directory

        def add_event(self, event):
            pass

        flush = close = reopen = lambda self: None

    init, add_event = module.FileWriter.__init__, module.FileWriter.add_event

    @functools.wraps(init)
    def file_writer_init(self, log_dir, *args, **kwargs):
        if job.distributed:
            return init(self, log_dir, *args, **kwargs)
        self.event_writer = NoEvents(str(log_dir))

    @functools.wraps(add_event)
    def file_writer_add_event(self, *args, **kwargs):
        if job.distributed:
            return add_event(self, *args, **kwargs)

    module.FileWriter.__init__ = file_writer_init
    module.FileWriter.add_event = file_writer_add_event


def _report_files(job):
    """A file that another rank than 0 opens for writing is rank 0's too: the script names one file."""

    def opened(event, arguments):
        if event != "open" or not _takes_part(job):
            return
        path, mode, flags = arguments
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
        if writes and flags & os.O_EXCL:  # a temporary file, of this rank's own
            return
        if not writes or not isinstance(path, (str, bytes)):
            return
        path = os.fsdecode(path)
        if path not in job.said and not path.startswith(("/dev/", "/proc/")):
            job.said.add(path)
            core.log(1, f"this rank opens {path} for writing, as rank 0 does: what they write is mixed. Write it with "
                        "torch.save, or on rank 0 only (os.environ['CASTOR_RANK'] == '0')".encode())

    sys.addaudithook(opened)
