"""Checkpoints under `castor run --nproc N`. Changes that a rank other than 0 makes to files are private (docs/files.md). Large
files are the same on all ranks: rank 0 writes one for all."""
import contextlib
import functools
import hashlib
import os
import sys
import threading

from .. import core, patching
from ..common import store

PATH_MAX = 4096
_installed = []  # the job of this rank; empty: it is no single-process script on several ranks


def install(job):
    _installed.append(job)
    patching.replace("torch.save", functools.partial(_once, job, "f", "torch.save"))
    if job.rank:
        # wandb reads it when a run begins, often before Castor sees anything else of the script.
        os.environ.setdefault("WANDB_MODE", "disabled")


def install_late(job):
    """Covers the libraries that the script has imported since."""
    if "safetensors.torch" in sys.modules and "safetensors" not in job.said:
        job.said.add("safetensors")
        # save_file, which others import by name, looks it up at each call.
        patching.replace("safetensors.torch.serialize_file", functools.partial(_once, job, "filename", "safetensors' save_file"))


def _name_digest(target):
    """Numbers that tell files apart by their whole path."""
    digest = hashlib.sha256(os.path.abspath(os.fsencode(target))).digest()
    return [float(int.from_bytes(digest[at:at + 6], "little")) for at in (0, 6)]


def is_installed():
    """Whether this is a single-process script on several ranks."""
    return bool(_installed)


def is_private():
    """Whether this process's changes to files are private: the core's own threads do not see them."""
    return bool(_installed) and core.options.rank > 0


def are_together():
    """Whether all ranks are in step, and on one node, so that rank 0 can write for all. Threads of the script are not: in them each rank writes by itself."""
    return (bool(_installed) and not _installed[0].distributed and _installed[0].nodes is None and store.active() and _installed[0].synchronizer is not None
            and threading.current_thread() is threading.main_thread())


def write_together(targets, write, what):
    """Calls write(), which writes the files `targets`, on rank 0 only. The others wait, and take rank 0's files as theirs, also
    under other names: a name may have the time in it, or a random folder. Returns what write() returned, None elsewhere."""
    job, result = _installed[0], None
    core.activity_set(job.group.handle, core.ACTIVITY_SAVE)
    try:
        names = job.group.gather(_name_digest(targets[0]), what)  # all are here: none still reads the old file, rank 0's too
        if job.rank == 0:
            result = write()
        sources = [None] * len(targets)
        if any(name != names[0] for name in names):
            paths = [os.path.realpath(os.fsencode(target)).ljust(PATH_MAX, b"\0") for target in targets]
            sources = [job.group.broadcast(path, what).rstrip(b"\0") for path in paths]
        job.group.barrier(what)
        for target, source in zip(targets, sources):
            core.files_adopt(os.fsencode(target), source if names[job.rank] != names[0] else None)
        job.group.barrier(what)  # rank 0 may change it again
    finally:
        core.activity_set(job.group.handle, core.ACTIVITY_SCRIPT)
    return result


def _written_apart(write, args, kwargs, target):
    """On several nodes each rank writes for itself. safetensors calls no libc for it: a rank's own file is written where no files are diverted, and
    then taken."""
    apart = os.path.join(core.options.log_dir, f".saved-{os.getpid()}-{threading.get_ident()}")
    args, kwargs = ((args[0], apart, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "filename": apart})
    try:
        result = write(*args, **kwargs)
        core.files_adopt(os.fsencode(target), os.fsencode(apart))
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(apart)
    return result


def _once(job, name_of_target, name, write):
    """Calls `write`, whose second argument is the file, on rank 0 only. To a file that is already open each rank writes by itself."""

    @functools.wraps(write)
    def write_once(*args, **kwargs):
        target = args[1] if len(args) > 1 else kwargs.get(name_of_target)
        if not isinstance(target, (str, bytes, os.PathLike)):
            return write(*args, **kwargs)
        if job.nodes is not None and job.rank and name_of_target == "filename":
            return _written_apart(write, args, kwargs, target)
        if not are_together():
            return write(*args, **kwargs)
        return write_together([target], lambda: write(*args, **kwargs), f"{name} of {os.path.basename(os.fsdecode(target))}")

    return write_once
