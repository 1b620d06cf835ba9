"""CASTOR_CHECKPOINT: the script's torch.save to a path writes the same bytes atomically, before it returns or in the background."""
import errno
import functools
import os
import re
import stat
import tempfile

import torch

from . import core, patching, writer


# Of a directory in which no file can be made. PyTorch may still be able to write to one that is there already.
_NOT_BEGUN = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)


def install():
    patching.replace("torch.save", _saver)
    patching.replace("torch.load", _after_saves)
    patching.put(os, "_exit", _ending)


def _is_plain(path):
    """Whether the path is a file's, or nobody's yet: no pipe, no device. A name that begins with its only dot PyTorch refuses."""
    if re.search(r"(^|/)\.[^./]*$", os.fspath(path)):
        return False
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return True  # the writer says what is wrong with it, or makes it


def _is_supported(f, use_new_zipfile_serialization=True):
    """`f`: where to. Else PyTorch writes, as it did."""
    from torch.utils.serialization import config

    serialization = torch.serialization._serialization_tls
    if core.options.rank >= 0 and core.options.world_size > 1:
        return False  # rank 0 writes for all, and the others wait for the file
    return (isinstance(f, (str, os.PathLike)) and use_new_zipfile_serialization and config.save.compute_crc32 and not serialization.skip_data
            and not serialization.materialize_fake_tensors and _is_plain(f))


@functools.cache
def _same_bytes(save):
    """Whether the writer's archives have the bytes of this version of PyTorch's."""
    sample = {"a": [torch.arange(300.), torch.zeros(0)], "b": torch.ones(3, dtype=torch.int16), "c": "text"}
    try:
        with tempfile.TemporaryDirectory(prefix="castor-") as folder:
            theirs, ours = os.path.join(folder, "theirs.pt"), os.path.join(folder, "ours.pt")
            save(sample, theirs)
            job = writer.Job()
            job.add_torch(ours, sample, folder="theirs")
            job.commit()
            with open(theirs, "rb") as one, open(ours, "rb") as other:
                same = one.read() == other.read()
    except (AttributeError, TypeError, ValueError):  # what _save needs of its writer is different
        same = False
    if not same:
        core.log(1, f"CASTOR_CHECKPOINT={core.options.checkpoint} has no effect: torch {torch.__version__} writes files of another form than Castor".encode())
    return same


def _saver(save):
    @functools.wraps(save)
    def saves(obj, f, *args, **kwargs):
        if not _takes(f, *args, **kwargs) or not _same_bytes(save):
            return save(obj, f, *args, **kwargs)
        job = writer.Job(background=core.options.checkpoint == "async")
        try:
            _add(job, obj, f, *args, **kwargs)
            job.commit()
        except OSError as error:
            if error.errno not in _NOT_BEGUN:
                raise
            return save(obj, f, *args, **kwargs)  # which raises PyTorch's own error, or can write there all the same

    return saves


def _takes(f, pickle_module=None, pickle_protocol=2, _use_new_zipfile_serialization=True, _disable_byteorder_record=False):
    return not _disable_byteorder_record and _is_supported(f, _use_new_zipfile_serialization)


def _add(job, obj, f, pickle_module=torch.serialization.pickle, pickle_protocol=torch.serialization.DEFAULT_PROTOCOL,
         _use_new_zipfile_serialization=True, _disable_byteorder_record=False):
    torch.serialization._check_dill_version(pickle_module)
    job.add_torch(f, obj, pickle_module, pickle_protocol)


def _after_saves(load):
    """A save that failed must not go unnoticed where its file is read: it would be the old one."""

    @functools.wraps(load)
    def loads(f, *args, **kwargs):
        if isinstance(f, (str, os.PathLike)):
            writer.wait()
        return load(f, *args, **kwargs)

    return loads


def _ending(status):
    """os._exit runs no handlers."""
    writer.finish()
    writer._exit(status)
