"""Sums of gradients that their owner alone keeps (zero2): p.grad of another rank is read when somebody looks at it.

`grad` of torch.nn.Parameter is PyTorch's, but for two looks of the script: where the sum is elsewhere, it is read from its owner; where this
rank is the owner, what others may still read is copied first, since the script may write what it gets. Whoever looks says so to all ranks
with the next backward; from the one after it on that bucket is summed on every rank, as under zero1."""
import contextlib
import threading
import weakref

import torch

from .. import patching
from ..device import homes
from ..precision import loss_scale, masters
from . import kept

_grad = torch._C.TensorBase.grad
_elsewhere = {}  # id(parameter): (weak reference to it, its part), whose sum the owner has
_shown = {}  # the same of this rank's own sums, which others may read
_thread = threading.local()  # .inside: Castor or an optimizer looks at gradients, and no script


def grad_of(p):
    """p.grad, if it is here."""
    return _grad.__get__(p)


def _note(table, p, part):
    """For the time that the parameter lives."""
    key = id(p)

    def end(reference):
        if table.get(key, (None,))[0] is reference:
            del table[key]

    table[key] = weakref.ref(p, end), part


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
        part.keep.preserve(part)


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
        loss_scale.has_grad = has_grad
        patching.replace("torch.nn.Parameter.grad", lambda _: property(_get, _set, _delete))


def leave(part):
    """The owner has the sum of the running backward, and p.grad is nothing here."""
    p = part.parameter()
    _grad.__set__(p, None)
    _note(_elsewhere, p, part)


def read(part):
    """The sum, from its owner."""
    sync, device = part.synchronizer(), part.keep.device
    if sync is not None and sync.begun:
        raise RuntimeError("castor: a gradient is looked at while a backward pass runs, and its sum is another rank's under this plugin: look at it after "
                           "backward(), or use CASTOR_PLUGIN=zero1")
    value = torch.empty_strided(*part.layout, dtype=part.bucket.dtype, device="cpu")
    shown = part.keep.shown
    kept.read(kept.peers_of(shown.group)[part.entry.owner], shown.name, shown.version, [(part.range, value)])
    with homes.born(homes.GRADIENT, device.index):
        return value.to(device)


def _put(p, value):
    """p.grad becomes the value, though the script may have given p other data since, of another device, type or size."""
    if (p.device, masters.gradient_dtype(p), p.shape) == (value.device, value.dtype, value.shape):
        _grad.__set__(p, value)
        return
    data = p.data
    p.data = value.detach()
    _grad.__set__(p, value)
    p.data = data


@torch.no_grad()
def bring(p):
    """p.grad is here from now on; what a backward has just added to nothing is added to it."""
    part = _part(_elsewhere, p)
    value, made = read(part), _grad.__get__(p)
    if made is not None:
        value.add_(made)
    forget(p)
    _put(p, value)
    touch(part)
    if made is None:
        part.entry.see(value)


def touch(part):
    """Something has looked at the sum here."""
    synchronizer = part.synchronizer()
    if synchronizer is not None:
        synchronizer.touched.add(part.bucket.number)


def keeps_of(entries):
    """What has the sums of those of which owners alone have them."""
    return {entry.part.keep for entry in entries if entry.is_single}


class Keep:
    """The sums that this rank keeps of a synchronizer, for the others.

    shown  of all ranks' sums; its version counts backward passes, and what owners have done to the sums since"""

    def __init__(self, synchronizer, number):
        self.shown, self.device = kept.Shown(synchronizer.group, number), synchronizer.device
        for part in synchronizer.parts:
            part.keep = self
        self.tensors = {}  # by Part.range: (weak reference to the part, what others read, which is p.grad as a rule)
        self.ready, self.aside = torch.cuda.Event(), torch.cuda.Stream(self.device)

    def _parts(self):
        """(range, part, its parameter) of those that live."""
        found = [(number, reference()) for number, (reference, _) in self.tensors.items()]
        found = [(number, part, part.parameter()) for number, part in found if part is not None]
        return [each for each in found if each[2] is not None]

    def begin(self):
        """A backward begins: others may still read."""
        for _, _, p in self._parts():
            _shown.pop(id(p), None)
        self.tensors = {}

    def release(self):
        """All ranks have begun the backward, in the order of the current stream."""
        kept.free(self.shown.name)

    def show(self, parts):
        """`parts`: whose sums this rank alone has, in the order of their ranges."""
        for part in parts:
            first = part.place.offset // part.bucket.memory.element_size()
            self.tensors[part.range] = weakref.ref(part), part.bucket.memory[first:first + part.bytes // part.bucket.memory.element_size()]
        self._show_new(lasts=True)

    def _show_new(self, lasts=False):
        """p.grad is what others read, from the next version on."""
        self.shown.version += 1
        for number, part, p in self._parts():
            grad = _grad.__get__(p)
            if grad is not None and grad.stride() == part.layout[1]:
                self.tensors[number] = self.tensors[number][0], grad.detach()
                _note(_shown, p, part)
        self._show(lasts)

    def _show(self, lasts=False):
        self.ready.record()
        kept.show(self.shown.name, self.shown.version, self.device, [tensor for _, tensor in self.tensors.values()], lasts=lasts)

    @torch.no_grad()
    def preserve(self, *parts):
        """What is in p.grad may change now; others read a copy. It is not made in the script's stream, which may wait for a rank that is to read it."""
        kept.hide(self.shown.name)
        stream = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self.aside):
            self.aside.wait_event(self.ready)
            for part in parts:
                touch(part)
                reference, tensor = self.tensors[part.range]
                self.tensors[part.range] = reference, tensor.clone()
                p = part.parameter()
                if p is not None:
                    _shown.pop(id(p), None)
            self._show()
        stream.wait_stream(self.aside)

    def preserve_uncleared(self):
        """A backward begins, which adds to what is in p.grad."""
        uncleared = [part for _, part, _ in self._parts() if _is_shown(part)]
        if uncleared:
            self.preserve(*uncleared)

    @contextlib.contextmanager
    def changing(self):
        """Owners change the sums, on all ranks together; who has looked at one before has it."""
        kept.hide(self.shown.name)
        yield
        self._show_new()
