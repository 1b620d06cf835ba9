"""Sums of gradients that their owner alone keeps (zero2): p.grad of another rank is read when somebody looks at it.

`grad` of torch.nn.Parameter is PyTorch's, but for two looks of the script: where the sum is elsewhere, it is read from its owner; where this
rank is the owner, what others may still read is copied first, since the script may write what it gets. Whoever looks says so to all ranks
with the next backward; from the one after it on that bucket is summed on every rank, as under zero1."""
import contextlib
import threading
import weakref

import torch

from .. import patching
from . import kept

_grad = torch._C.TensorBase.grad
_elsewhere = {}  # id(parameter): (weak reference to it, its part), whose sum the owner has
_shown = {}  # the same of this rank's own sums, which others may read
_thread = threading.local()  # .inside: Castor or an optimizer looks at gradients, and no script


def grad_of(p):
    """p.grad, if it is here."""
    return _grad.__get__(p)


def _part(table, p):
    found = table.get(id(p))
    return found[1] if found is not None and found[0]() is p else None


def is_elsewhere(p):
    return bool(_elsewhere) and _part(_elsewhere, p) is not None


def has_grad(p):
    return grad_of(p) is not None or is_elsewhere(p)


@contextlib.contextmanager
def unseen():
    """Looks at p.grad are not the script's, and find what is here."""
    before, _thread.inside = getattr(_thread, "inside", False), True
    try:
        yield
    finally:
        _thread.inside = before


def _get(p):
    grad = _grad.__get__(p)
    if grad is None:
        if _elsewhere and not getattr(_thread, "inside", False) and _part(_elsewhere, p) is not None:
            bring(p)
            return _grad.__get__(p)
    elif _shown and not getattr(_thread, "inside", False):
        _preserve(p, grad)
    return grad


def _preserve(p, grad):
    """The script may change this tensor from here on."""
    part = _part(_shown, p)
    if part is not None and part.entry.was_shown(grad):
        part.synchronizer().keep.preserve(part)


def _is_shown(part):
    p = part.parameter()
    return p is not None and _part(_shown, p) is part and _grad.__get__(p) is not None


def _set(p, grad):
    if not getattr(_thread, "inside", False):
        if grad is not None and _shown:
            _preserve(p, _grad.__get__(p))
        forget(p)
    _grad.__set__(p, grad)


def forget(p):
    """What p.grad was is the script's business no more, wherever it is."""
    _elsewhere.pop(id(p), None)
    _shown.pop(id(p), None)


def _delete(p):
    _set(p, None)


_installed = False


def install():
    """When the first sums have owners."""
    global _installed
    if not _installed:
        _installed = True
        patching.replace("torch.nn.Parameter.grad", lambda _: property(_get, _set, _delete))


def leave(part):
    """The owner has the sum of the running backward, and p.grad is nothing here."""
    p = part.parameter()
    _grad.__set__(p, None)
    _elsewhere[id(p)] = weakref.ref(p), part


def read(part):
    """The sum, from its owner."""
    sync = part.synchronizer()
    p = part.parameter()
    if sync.begun:
        raise RuntimeError("castor: a gradient is looked at while a backward pass runs, and its sum is another rank's under this plugin: look at it after "
                           "backward(), or use CASTOR_PLUGIN=zero1")
    value = torch.empty_strided(p.shape, p.stride(), dtype=p.dtype)
    kept.read(kept.peers_of(sync.group)[part.entry.owner], sync.keep.name, sync.keep.version, [(part.range, value)])
    return value.to(p.device)


@torch.no_grad()
def bring(p):
    """p.grad is here from now on; what a backward has just added to nothing is added to it."""
    part = _part(_elsewhere, p)
    value, made = read(part), _grad.__get__(p)
    if made is not None:
        value.add_(made)
    forget(p)
    _grad.__set__(p, value)
    part.synchronizer().touched.add(part.bucket.number)
    if made is None:
        part.entry.see(value)


class Keep:
    """The sums that this rank keeps of a synchronizer, for the others.

    version  of all ranks' sums: it counts backward passes, and what owners have done to the sums since"""

    def __init__(self, synchronizer, number):
        self.synchronizer = weakref.ref(synchronizer)
        self.name, self.version = kept.name_of(synchronizer.group, number), 0
        self.tensors = {}  # part: what others read, which is p.grad as a rule
        self.leased = {}  # of the last backward, until all ranks have begun the next one

    def begin(self):
        """A backward begins: others may still read."""
        for part in self.tensors:
            p = part.parameter()
            if p is not None:
                _shown.pop(id(p), None)
        self.leased, self.tensors = self.tensors, {}

    def release(self):
        """All ranks have begun the backward, in the order of the current stream."""
        self.leased = {}

    def show(self, parts):
        """`parts`: whose sums this rank alone has, in their order."""
        for part in parts:
            first = part.place.offset // part.bucket.memory.element_size()
            self.tensors[part] = part.bucket.memory[first:first + part.bytes // part.bucket.memory.element_size()]
        self._show_new(lasts=True)

    def _show_new(self, lasts=False):
        """p.grad is what others read, from the next version on."""
        self.version += 1
        for part in self.tensors:
            p = part.parameter()
            grad = None if p is None else _grad.__get__(p)
            if grad is not None and grad.stride() == p.stride():
                self.tensors[part] = grad.detach()
                _shown[id(p)] = weakref.ref(p), part
        self._show(lasts)

    def _show(self, lasts=False):
        ranges = [(tensor.data_ptr(), part.bytes) for part, tensor in self.tensors.items()]
        kept.show(self.name, self.version, self.synchronizer().device, ranges, lasts=lasts)

    @torch.no_grad()
    def preserve(self, *parts):
        """What is in p.grad may change now; others read a copy."""
        kept.hide(self.name)
        for part in parts:
            self.synchronizer().touched.add(part.bucket.number)
            self.tensors[part] = self.tensors[part].clone()
            p = part.parameter()
            if p is not None:
                _shown.pop(id(p), None)
        self._show()

    def preserve_uncleared(self):
        """A backward begins, which adds to what is in p.grad."""
        uncleared = [part for part in self.tensors if _is_shown(part)]
        if uncleared:
            self.preserve(*uncleared)

    @contextlib.contextmanager
    def changing(self):
        """Owners change the sums, on all ranks together; who has looked at one before has it."""
        kept.hide(self.name)
        yield
        self._show_new()
