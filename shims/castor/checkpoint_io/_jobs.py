"""Files of the ranks of `castor run --nproc`, whose changes to files are private (docs/files.md). The writer works in the core,
which does not see them: rank 0 writes for all, and the others take its files as theirs."""
import contextlib
import os
import shutil
import sys
import tempfile

from ..agent import core
from . import _writer


def job(background=False):
    """A Job. Under `--nproc` it ignores `background`: the other ranks wait for the files."""
    writers = _writers()
    if writers is None or not writers.is_installed():
        return _writer.Job(background=background)
    return _TogetherJob() if writers.are_together() else _PrivateJob() if writers.is_private() else _writer.Job()


def _writers():
    return sys.modules.get(core.__package__ + ".nproc.writers")


class _TogetherJob:
    """The writer's Job, written by rank 0."""

    partial = None

    def __init__(self):
        self._job = _writer.Job() if self._writes() else None
        self._targets, self._gone = [], []

    @staticmethod
    def _writes():
        return core.options.rank == 0

    def _add(self, kind, path, arguments):
        self._targets.append(os.path.abspath(path))
        return len(self._targets) - 1 if self._job is None else getattr(self._job, kind)(self._at(path), *arguments)

    def add_safetensors(self, path, *arguments):
        return self._add("add_safetensors", path, arguments)

    def add_torch(self, path, *arguments):
        return self._add("add_torch", path, arguments)

    def add_text(self, path, *arguments):
        return self._add("add_text", path, arguments)

    def _at(self, path):
        return path

    def remove(self, path):
        self._gone.append(path)

    def commit(self):
        _writers().write_together(self._targets, self._job and self._job.commit, f"the save of {os.path.basename(self._targets[-1])}")
        self._remove()

    def _remove(self):
        for path in self._gone:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


class _PrivateJob(_TogetherJob):
    """The same before the ranks are in step: this rank, which is not 0, writes into a folder that the core sees, too."""

    def __init__(self):
        super().__init__()
        self._folder = tempfile.mkdtemp(prefix="castor-")

    @staticmethod
    def _writes():
        return True

    def _at(self, path):
        return os.path.join(self._folder, str(len(self._targets)))

    def commit(self):
        try:
            self._job.commit()
            for number, target in enumerate(self._targets, 1):
                core.files_adopt(os.fsencode(target), os.fsencode(os.path.realpath(os.path.join(self._folder, str(number)))))
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._remove()
