"""Tells the core where phases of the script begin and end: imports, batches of DataLoaders, torch.save, the script's end. Backward passes and
optimizer steps do so where they are counted. What the time between them was, the core decides (interpose/trace/phases.h)."""
import atexit
import ctypes
import functools

from .. import core, patching
from . import iterations, stacks


def _wrap_iter(iter_):
    @stacks.unseen
    @functools.wraps(iter_)
    def loader_iter(self):
        core.phase_begin(core.PHASE_DATA)
        try:
            iterator = iter_(self)
            iterator._castor_fetched = 0 if iterations.fetched_ahead(self) else None
            return iterator
        finally:
            core.phase_end(0)

    return loader_iter


def _wrap_next(next_):
    @stacks.unseen
    @functools.wraps(next_)
    def iterator_next(self):
        core.phase_begin(core.PHASE_DATA)
        given = 0
        try:
            batch = next_(self)
            given = 1
        finally:
            if getattr(self, "_castor_fetched", None) is not None:  # the script gets the batch that was fetched before
                given, self._castor_fetched = self._castor_fetched, given
            core.phase_end(given)
        return batch

    return iterator_next


def _wrap_save(save):
    @functools.wraps(save)
    def saves(*args, **kwargs):
        core.phase_begin(core.PHASE_SAVING)
        try:
            return save(*args, **kwargs)
        finally:
            core.phase_end(0)

    return saves


def _wrap_import(find_and_load):
    """A function of C: one of Python would stand in the traceback of every import that fails."""
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.argtypes, make.restype = [ctypes.c_void_p] * 3, ctypes.py_object
    _kept.append(find_and_load)
    return make(core.import_counted(id(find_and_load), ctypes.cast(ctypes.pythonapi.PyObject_Call, ctypes.c_void_p)), None, None)


_kept = []  # what the core calls


def install():
    patching.replace("importlib._bootstrap._find_and_load", _wrap_import)
    patching.replace("torch.utils.data.dataloader.DataLoader.__iter__", _wrap_iter)
    patching.replace("torch.utils.data.dataloader._BaseDataLoaderIter.__next__", _wrap_next)
    patching.replace("torch.save", _wrap_save)
    atexit.register(core.phase_begin, core.PHASE_EXIT)
