"""The gradients of each backward are added into the store's sums, and p.grad becomes a window on the sum.

Several synchronizers may have one parameter: a module in two wrappers, a model that is wrapped again. What belongs to the
parameter is kept in its entry; what belongs to a wrapper, in its synchronizer. Of several that a backward reaches, one adds
the gradient, and the sum is that of all."""
import collections
import ctypes
import functools
import itertools
import threading
import weakref

import torch

from .. import core
from ..common import store, tensors
from ..precision import loss_scale, masters
from ..process import events
from . import accumulation

_NOT_ADDED = 2**64 - 1  # the ticket of a gradient on its way to the core


_numbers = itertools.count()  # synchronizers are made in the same order on all ranks


class _Thread(threading.local):
    begun = None  # the synchronizers that the running backward has reached


_thread = _Thread()


def _unhook(hooks):
    for hook in hooks.values():
        hook.remove()


def why_broken(error):
    """Why a synchronizer whose backward has ended with this error can sum no more."""
    return (f"a backward pass ended with {type(error).__name__} before its gradients were summed, and no other one can follow: let the exception "
            "end the script")


class Synchronizer:
    """Sums the gradients of a list of parameters over a group, at the end of each backward for which `expecting` is set. It lives as
    long as its owner, as DistributedDataParallel's reducer: its hooks do not hold it."""

    late = False  # as `delayed`, for what the last forward makes

    def __init__(self, group, parameters, delayed=False):
        self.group, self.delayed, self.number = group, delayed, next(_numbers)
        self.expecting = self.begun = False
        self.ready = set()  # the entries whose gradients came since expect()
        self.broken = None  # why no backward can be synchronized any more
        self.scale = 1.0 / group.total  # the weight of this rank's gradients
        self.pending = collections.deque()  # (core.Gradient, entry, parameter, gradient, source): being added
        self.done = ctypes.c_uint64()  # the last ticket that was
        self.entries = masters.adopt(group, parameters)
        self.schedule = None  # the exchanges between nodes while a backward runs (nodes/across.py)
        self.let_go_before = False
        if group.across is not None:
            group.across.synchronizers.add(self)
        self.hooks = {}  # entry: the handle of its hook
        weakref.finalize(self, _unhook, self.hooks).atexit = False
        accumulation.watch(self)
        for p, e in zip(parameters, self.entries):
            self.hook(p, e)

    def hook(self, p, entry):
        this = weakref.ref(self)

        def ready(p):
            synchronizer = this()
            if synchronizer is not None:
                synchronizer._ready(entry, p)

        entry.synchronizers.add(self)
        self.hooks[entry] = p.register_post_accumulate_grad_hook(ready)

    def expect(self):
        """The next gradients are to be summed."""
        self.expecting = True
        self.ready.clear()

    def still_expects(self):
        """Whether gradients of further backward passes belong to those that were summed just now."""
        return False

    @property
    def unsynced(self):
        """A backward without synchronization reached some of the parameters after the last one with it."""
        return any(not e.synced for e in self.entries)

    def moved(self, entry, p):
        """A gradient came of a parameter that the script has moved to a device since it was registered."""
        raise core.Error(f"castor: a parameter of shape {tuple(p.shape)} was moved to {p.device} after its gradients were to be summed on the "
                         "CPU: move the model before it is wrapped and its optimizer is built")

    def remove_hooks(self):
        _unhook(self.hooks)

    def _ready(self, entry, p):
        if not store.active():
            return
        if p.device.type != "cpu":
            self.moved(entry, p)
            return
        core.gradient_ready(entry.handle, self.done)
        if not self.expecting:
            return
        if not self.begun:
            self._begin()
        if self.delayed or self.late:
            return
        if entry in self.ready:
            self.refuse_second()
        self.ready.add(entry)
        if entry.added:  # by another wrapper of this parameter
            return
        self._reap()  # earlier gradients only: the script's own hooks, which run after this one, still look at p.grad
        self._submit([(entry, p, p.grad)])
        if self.group.across is not None:
            self.group.across.go_on(self)

    @property
    def leads(self):
        """Its sums are exchanged between nodes while the running backward makes them."""
        return self.group.across is not None and self.group.across.leader is self

    def _begin(self):
        if self.broken:
            self.refuse_broken()
        self.begun = True
        if not _thread.begun:
            _thread.begun = [self]
            events.at_end(functools.partial(_end, _thread.begun), functools.partial(_raised, _thread.begun))
        else:
            _thread.begun.append(self)
        if self.group.across is not None and not self.late:
            self.group.across.begin(self)

    @staticmethod
    def refuse_second():
        raise RuntimeError(
            "Expected to mark a variable ready only once: a parameter got two gradients after one forward of its "
            "DistributedDataParallel. Add the losses and call backward() once; for reentrant checkpointing of shared weights pass static_graph=True "
            "to DistributedDataParallel, or use_reentrant=False to checkpoint()."
        )

    def _submit(self, made):
        """`made`: (entry, parameter, gradient) each. Adds the gradients to the sums. From now on this rank does not read the sums of the last backward."""
        added = (core.Gradient * len(made))()
        for (entry, p, grad), gradient in zip(made, added):
            self._describe(entry, gradient)
            source = self._source_of(entry, p, grad)
            if source is not None:
                gradient.source, gradient.ticket = source.data_ptr(), _NOT_ADDED
                self.pending.append((gradient, entry, p, grad, source))  # before the call, which may fail halfway
            gradient.keeps = accumulation.goes_on(p)
        core.gradients_add(added, len(added), self.scale)

    @staticmethod
    def _describe(entry, gradient):
        """Fills in what the core needs to release the last sum."""
        gradient.tensor = entry.handle
        if entry.hidden is not None and entry.shows_window(entry.hidden):
            gradient.window = entry.window

    def _source_of(self, entry, p, grad):
        """The gradient, in the sum's type and strides."""
        if grad is None:
            return None
        if grad.layout is not torch.strided:
            other = "run this script on one rank" if masters.of(p) is None else "leave CASTOR_PRECISION at fp32"
            raise core.Error(f"castor: a gradient is sparse: make it dense (Embedding(sparse=False)), or {other}")
        if p.dtype is not entry.dtype:
            raise core.Error(f"castor: a parameter of shape {tuple(p.shape)} has become {p.dtype}, and its gradients are summed "
                             f"as {entry.dtype}: wrap the model again, or build its optimizer again, after such a change")
        source = grad.detach()
        if source.dtype is not entry.sum_alias.dtype:
            source = source.to(entry.sum_alias.dtype)
        if source.stride() != entry.sum_alias.stride():
            source = torch.empty_strided(entry.sum_alias.shape, entry.sum_alias.stride(), dtype=entry.sum_alias.dtype)
            source.copy_(grad.detach())
        return source

    def let_go(self):
        """Releases the last sums, before the first gradient of a backward that makes ours."""
        entries = self._participants()
        gradients = (core.Gradient * len(entries))()
        for entry, gradient in zip(entries, gradients):
            self._describe(entry, gradient)
        core.gradients_let_go(gradients, len(entries))

    def _reap(self):
        while self.pending and self.pending[0][0].ticket <= self.done.value:
            self._added()

    def _added(self, place=0):
        """The gradient at this place in the queue is in the sum: its memory can be freed."""
        _, entry, p, grad, source = self.pending[place]
        del self.pending[place], source
        if not entry.shared or p.grad is not grad or entry.shows_window(grad):
            return
        if tensors.is_reached(grad):
            return
        held = weakref.ref(grad)
        p.grad = grad = None
        if held() is not None:  # the script holds it as well
            p.grad = held()

    def _participants(self):
        """The entries that this backward sums: the same on every rank."""
        return self.entries

    def refuse_broken(self):
        core.fail(self.group.handle, self.broken.encode(), 0)
        raise core.GroupError(f"castor: {self.broken}")

    def _raised(self, error):
        """A backward raised after some gradients were handed over, or while this rank waited for the sums: other ranks wait for
        the rest."""
        if self.begun:
            self._break_off(error)

    def _break_off(self, error):
        """No sum can be completed. Gradients that were handed over keep their memory: they may still be added."""
        self.broken = self.broken or why_broken(error)
        self.begun = self.expecting = False
        core.gradients_break_off(store.handles(self.entries), len(self.entries))

    def sum_accumulated(self):
        """Sums what backward passes without synchronization have left in p.grad. On every rank together."""
        if self.broken:
            self.refuse_broken()
        _finish([self])

    def _complete(self, entries):
        """Waits for the sums. Returns which of them some rank has used."""
        late = [(e, e.parameter()) for e in entries if not e.added]
        if late:
            self._submit([(e, p, None if p is None else p.grad) for e, p in late])
        used = (ctypes.c_uint8 * max(len(entries), 1))()
        core.gradients_finish(self.group.handle, store.handles(entries), len(entries), used)
        if self.group.across is not None:
            self.schedule = self.group.across.sum(entries, used, self.schedule)
            self.group.across.end(self)
        if loss_scale.active():
            loss_scale.check(self.group, entries, used)
        self.group.sums += 1
        return used

    def _show(self, entries, used):
        """p.grad becomes the sum, for each parameter that some rank used."""
        copied, refreshed, taken = [], [], []
        for entry, some_rank_used in zip(entries, used):
            p = entry.parameter()
            show_hidden(entry)
            if not (some_rank_used or entry.carrying) or p is None:
                copied.append(entry)  # p.grad stays as it was
            elif entry.shared and entry.shows_window(p.grad):
                refreshed.append(entry)
            elif entry.shared and p.grad is None and p.stride() == entry.sum_alias.stride():
                taken.append((entry, p))
            else:  # a gradient that the script holds gets new values, but stays the same tensor
                if p.grad is None:
                    p.grad = torch.empty_like(p, dtype=entry.sum_alias.dtype)
                p.grad.copy_(entry.sum_alias)
                copied.append(entry)
        core.sums_release(store.handles(copied), len(copied))
        shown = refreshed + [entry for entry, _ in taken]
        windows, addresses = core.pointers([e.window for e in refreshed] + [None] * len(taken)), core.pointers([None] * len(shown))
        core.windows_show(store.handles(shown), len(shown), windows, addresses)
        for number, (entry, p) in enumerate(taken, len(refreshed)):
            p.grad = entry.over_window(windows[number], addresses[number])
        for entry in entries:
            p = entry.parameter()
            if p is not None:
                entry.shown = None if p.grad is None else weakref.ref(p.grad)
                entry.shown_version = 0 if p.grad is None else p.grad._version


def _end(begun):
    """The backward has returned that reached these synchronizers."""
    _thread.begun = None
    _finish(begun)


def _raised(begun, error):
    _thread.begun = None
    for synchronizer in begun:
        synchronizer._raised(error)


def _finish(synchronizers):
    """Sums what these synchronizers wait for, and shows the sums: each parameter's once, whatever number of them have it. Who has sent sums to other nodes already,
    as many as were complete here, sends the rest before any other's."""
    synchronizers = sorted(synchronizers, key=lambda s: (not s.leads, s.number))
    try:
        for synchronizer in synchronizers:  # all of them, before any sum is made: that releases the last sums, and the models may share parameters
            if synchronizer.group.across is not None and synchronizer.begun and synchronizer.late:  # ranks that wait for each other within a pass meet behind it
                synchronizer.group.across.begin(synchronizer)
        taken, sums = set(), []
        for synchronizer in synchronizers:
            entries = synchronizer._participants()
            if not taken.isdisjoint(entries):
                entries = [e for e in entries if e not in taken]
            taken.update(entries)
            if entries or not sums:
                sums.append((synchronizer, entries))
            elif synchronizer.group.across is not None:
                synchronizer.group.across.end(synchronizer)
        sums = [(synchronizer, entries, synchronizer._complete(entries)) for synchronizer, entries in sums]
        for synchronizer in synchronizers:  # all of them, before any sum is shown: a gradient may be another one's
            while synchronizer.pending:
                synchronizer._added()
        with torch.no_grad():
            for synchronizer, entries, used in sums:
                synchronizer._show(entries, used)
        for synchronizer in synchronizers:
            synchronizer.begun = False
            synchronizer.expecting = synchronizer.expecting and synchronizer.still_expects()
    except BaseException as error:
        for synchronizer in synchronizers:
            synchronizer._break_off(error)
        raise


# ---- accumulation: a sum that goes on through several backward passes


def show_hidden(entry):
    if entry.hidden is not None:
        p = entry.parameter()
        if p is not None:
            p.grad = entry.hidden
        entry.hidden = None


def hide_carried(synchronizers):
    """A backward begins: p.grad of what is to be summed is hidden, so that autograd gives the new gradients alone, which are added to
    the sums."""
    unsynced = {e for s in synchronizers if s.unsynced for e in s.entries}
    expected = {e for s in synchronizers if s.expecting for e in s.entries}
    every = [e for e in store.entries() if e.carried]
    store.carry({e: False for e in every if e in unsynced})  # p.grad holds the sum and gradients without synchronization
    carried = [(e, e.parameter()) for e in every if e.carried and e.parameter() is not None]
    changed = store.changed([(e, p) for e, p in carried if p.grad is not None])
    for entry, p in carried:
        if entry in changed and (p.grad is not entry.shown_grad() or p.grad.any()):
            accumulation.refuse_change(p)
    for synchronizer in synchronizers:  # clearing by hand acts at the step only
        entries = [e for e in synchronizer.entries if e in changed]
        synchronizer._show(entries, [True] * len(entries))
        changed.difference_update(entries)
    for entry, p in carried:
        if entry in expected:
            entry.hidden, p.grad = p.grad, None
        elif p.grad is None:
            accumulation.refuse_change(p)


def show_carried():
    """The backward is over: gradients that it did not reach show what they showed before."""
    for entry in store.entries():
        show_hidden(entry)
