"""Random numbers of a step over a split batch: which of them belong to samples.

Numbers for the samples of the local batch are drawn in the whole batch's shape, and the local rows are kept (draws.py,
arrays.py). So they are those of the single process, bit for bit, and all ranks' generators stay in one state. Numbers for no
sample (a coin, a permutation of layers) are drawn unchanged, alike on all ranks.

The samples' dimension follows from the shape, and from the tensor that the numbers are drawn for, if there is one (dropout,
randn_like). Nothing else shows it: if the first dimension of a tensor just happens to be as long as the local batch, it is taken for
the samples'."""
import contextlib
import sys
import threading
import weakref

import torch
from torch.utils._pytree import tree_flatten

from .. import core
from ..common import store

_NODES = 64  # of a graph that are looked at, at most
_BATCHES = 4  # batches of several loaders, in one step
_SITES = 1000


class LocalBatch:
    """Rows [first, last) of a batch of `count`, and the other dimensions of its tensors."""

    def __init__(self, first, last, count):
        self.first, self.last, self.count, self.size = first, last, count, last - first
        self.lengths = {1}  # other dimensions
        self.blocks = set()  # their products: a first dimension may be longer than the local batch by such a factor
        self.whole_drawn = False  # the script draws numbers for the whole batch, on each rank

    def look_at(self, data):
        for leaf in tree_flatten(data)[0]:
            block = 1
            for length in tuple(getattr(leaf, "shape", ()))[1:]:
                block *= length
                self.lengths.add(length)
                self.blocks.add(block)

    def dimension(self, shape, certain):
        """(dimension of the samples, rows for each of them); None: there is none. `certain`: there must be one."""
        first, size = shape[0], self.size
        if first == size and (certain or _varies(shape)):
            return 0, 1
        if len(shape) > 1 and shape[1] == size and (certain or first in self.lengths):
            return 1, 1
        rows, rest = divmod(first, size)
        if certain:
            if rest == 0 and not (first == self.count and self.whole_drawn):
                return 0, rows
            return next(((d, 1) for d in range(2, len(shape)) if shape[d] == size), None)
        if first == self.count:
            self.whole_drawn = True
        elif rest == 0 and size > 1 and rows in self.blocks:
            return 0, rows
        return None


class _Here(threading.local):
    plain = 0  # above 0: draws stay unchanged
    source = None  # the tensor that numbers are drawn for


here = _Here()
_job = None
_batches = []  # of the step, the latest last
_local_from = _whole_from = lambda: None  # weak references to the iterators that gave the last local batch, and since then whole batches
_used = False  # a backward has used them
_waiting = 0  # batches that the script has, and no backward has used
_ended = False  # the iterator has no more batches
_inside = False  # a model computes this rank's rows of a batch that the script has whole (boundary.py)
_loose = False
_fixed = set()  # (place in the script, shape) that were drawn while the local batch had another length
_of_samples = set()  # (place, shape without the first dimension), where that was as long as the local batch
_parameters = (0, {})  # how many are registered, and address: parameter


# ---- what the loaders and the job tell


def begin(iterator, first, last, count):
    """The script gets rows [first, last) of a batch of `count`. `iterator`: a weak reference to the one that gives them."""
    _begin(iterator)
    _batches.append(LocalBatch(first, last, count))
    del _batches[:-_BATCHES]


def begin_plain(iterator):
    """The script gets a whole batch, to train on it: each rank draws what the single process does."""
    _begin(iterator)
    _batches.clear()


def _begin(iterator):
    global _used, _waiting, _ended, _local_from, _whole_from
    _local_from, _whole_from, _ended = iterator, lambda: None, False
    if _used:
        _batches.clear()
        _used, _waiting = False, 0
    _waiting += 1


@contextlib.contextmanager
def within(local_batch):
    """A model computes the rows of `local_batch`, of a batch that the script has whole."""
    global _inside
    _batches[:], _inside = [local_batch], True
    try:
        yield
    finally:
        _batches[:], _inside = [], False


def look_at(data):
    if _batches:
        _batches[-1].look_at(data)


def begin_whole(iterator):
    """The script gets a batch that is not split, to look at."""
    global _whole_from
    _whole_from = iterator


def end(iterator):
    """There are no more batches. Returns whether the script has some that it has not trained on (list(loader))."""
    global _whole_from, _ended
    if _whole_from() is iterator:
        _whole_from = lambda: None  # noqa: E731
    if _local_from() is iterator:
        _ended = True
        _forget_used()
    return _waiting > 0


def used():
    global _used, _waiting
    _used, _waiting = True, max(0, _waiting - 1)
    _forget_used()


def _forget_used():
    global _local_from
    if _ended and not _waiting:
        _local_from = lambda: None  # noqa: E731
        _batches.clear()


def note_loose():
    global _loose
    _loose = True


def reset():
    global _loose
    _loose = False


def drawn_loosely():
    """Whether this rank, since the last call or reset(), has drawn numbers that differ from the single process's."""
    loose = _loose
    reset()
    return loose


@contextlib.contextmanager
def plain():
    here.plain += 1
    try:
        yield
    finally:
        here.plain -= 1


def latest():
    return _batches[-1]


def splits():
    """Whether draws belong to a step over a split batch now."""
    if not _batches or here.plain or _job.distributed or not store.active():
        return False
    return _inside or _whole_from() is None or torch.is_grad_enabled() and not _job.evaluating


# ---- whose numbers they are


def _site():
    """The place in the script, or in a library of its, that draws, where shapes alone do not tell samples from constants. Without this look at
    callers' frames the case constants_as_long_as_a_part of chance.py (semantics) fails."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(core.PACKAGE_FOLDER):
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def _varies(shape):
    """Whether a first dimension as long as the local batch varies with it, and is no constant of the script."""
    site = _site()
    if (site, shape) in _fixed:
        return False
    if shape[0] > 1:
        _remember(_of_samples, (site, shape[1:]))
        return True
    return len(shape) > 1 or (site, ()) in _of_samples  # one number is a coin, unless this place drew one for each sample before


def _remember(known, what):
    if len(known) < _SITES:
        known.add(what)


def is_registered(tensor):
    global _parameters
    if isinstance(tensor, torch.nn.Parameter) or store.entry_of(tensor) is not None:
        return True
    count = 0 if _job.synchronizer is None else _job.synchronizer.count
    if _parameters[0] != count:
        known = [(reference(), reference) for reference in (_job.synchronizer.parameters() if count else ())]
        _parameters = count, {p.data_ptr(): reference for p, reference in known if p is not None}
    p = _parameters[1].get(tensor.data_ptr(), lambda: None)()
    return p is not None and p.data_ptr() == tensor.data_ptr()


def _of_parameters(tensor):
    """Whether it was made of parameters alone, as far as its graph can be followed, or of one and numbers of its shape."""
    if tensor.grad_fn is None:
        return is_registered(tensor)
    reached, seen, of_its_shape = [tensor.grad_fn], set(), False
    mixed = False
    while reached:
        node = reached.pop()
        if node in seen:
            continue
        seen.add(node)
        if len(seen) > _NODES or type(node).__name__.startswith(("Embedding", "Index", "Gather")):
            return False
        if any(parent is None for parent, _ in node.next_functions):
            if not type(node).__name__.startswith(_ELEMENTWISE):
                return False
            mixed = True
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            if not is_registered(leaf):
                return False
            of_its_shape = of_its_shape or leaf.shape == tensor.shape
        reached += [parent for parent, _ in node.next_functions if parent is not None]
    return of_its_shape or not mixed


_ELEMENTWISE = ("MulBackward", "DivBackward", "AddBackward", "SubBackward")


LOOSE = object()


def place_of(shape, source=None):
    """(LocalBatch, dimension, rows for each sample) of numbers of this shape; None: they belong to no samples. LOOSE: they do,
    but nothing shows which belong to which."""
    if not shape or 0 in shape:
        return None
    certain = source is not None and source.grad_fn is not None
    for batch in reversed(_batches):
        found = batch.dimension(shape, certain)
        if found is not None:
            return None if source is not None and _of_parameters(source) else (batch, *found)
    if certain and not any(batch.whole_drawn and batch.count == shape[0] for batch in _batches):
        return None if _of_parameters(source) else LOOSE
    if source is None:
        _remember(_fixed, (_site(), shape))
    return None


def install(job):
    global _job
    _job = weakref.proxy(job)
