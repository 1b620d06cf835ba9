"""Optimizer steps under the plugin fsdp.

sharded     a class whose update treats each element on its own: it steps this rank's part, in the node's memory, with states of the
            same rows; outside of steps the script sees all of them whole
replicated  any other class: every rank steps everything in what it sees, and each publishes its rows"""
import functools
import threading
import weakref
import zlib

import torch

from .. import core, patching
from ..common import store
from ..optim import figures, owner
from ..process import events
from . import homes, memory

# Of torch.optim, exactly: the update of an element depends on that element, and on numbers that all have in common.
_ELEMENTWISE = tuple(getattr(torch.optim, name) for name in ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop",
                                                             "Rprop", "SGD") if hasattr(torch.optim, name))
_places = weakref.WeakKeyDictionary()  # optimizer: {(home, name of a state): Region}


class _Thread(threading.local):
    running = None  # the optimizer whose outermost step runs
    inside = False  # within that one's own step


_thread = _Thread()


def _outermost(wrapper):
    """Wraps the step that Optimizer.profile_hook_step made for a class: counts steps."""

    @functools.wraps(wrapper)
    def step(*args, **kwargs):
        if torch.compiler.is_compiling() or _thread.running is not None or not store.active():
            return wrapper(*args, **kwargs)
        begin, _thread.running, _thread.inside = core.phase_begin(core.PHASE_OPTIMIZER), args[0], False
        try:
            result = wrapper(*args, **kwargs)
        finally:
            _thread.running = None
            core.phase_end(0)
        found = any(homes.home_of(p) for p in store.parameters_of(args[0]))
        figures.stepped(args[0], begin, (core.MODE_OWNER if type(args[0]) in _ELEMENTWISE else core.MODE_REPLICATED) if found else core.MODE_PLAIN)
        return result

    return torch._disable_dynamo(step)


def _inner(func):
    """Wraps the `step` of a class, within what calls the hooks of steps, which see the whole model."""

    @functools.wraps(func)
    def step(*args, **kwargs):
        optimizer = args[0]
        if _thread.running is not optimizer or _thread.inside:
            return func(*args, **kwargs)
        found = [h for p in store.parameters_of(optimizer) if (h := homes.home_of(p)) is not None]
        if not found:
            return func(*args, **kwargs)
        if events.depth():
            raise core.Error("castor: fsdp: an optimizer steps inside a backward pass, before the gradients of the ranks are averaged: use it without "
                             "the plugin, or another plugin")
        _thread.inside = True
        try:
            return (_sharded if type(optimizer) in _ELEMENTWISE else _replicated)(func, optimizer, found, args[1:], kwargs)
        finally:
            _thread.inside = False

    return step


def _begin(optimizer, found, states):
    """All ranks have come to a step, with the same settings; what a script has written to gradients, parameters or states on one rank, it
    has on all. `states`: (home, name, tensor, Region or None) each. Returns the homes and the states whose values are not the shared
    ones."""
    changed, written = set(), set()
    for group in _groups(found):
        pairs = [(h.p, h) for h in found if h.model.group is group and h.p.grad is not None]
        regraded = any(h.shown is None or h.shown[0] is not p.grad or h.shown[1] != p.grad._version for p, h in pairs)
        every = [h for m in _models(found) if m.group is group for h in m.homes]
        pages = memory.edited([h.region for h in every])
        mine = [h.region in pages or not h.region.shows(h.p.data) for h in every]
        own = [(h, n, t, r) for h, n, t, r in states if h.model.group is group]
        pages = memory.edited([r for *_, r in own if r is not None])
        loaded = [(h, n) for h, n, t, r in own if r is None or r in pages]
        names = zlib.crc32(repr([h.name for _, h in pairs]).encode())
        agreed = [*owner._agreed_values(optimizer, pairs), ("the checksum of the names of the parameters that have gradients", float(names))]
        said = group.begin_step(agreed, [float(regraded), float(any(mine)), float(bool(loaded))])
        if any(flag for _, flag, _ in said):
            mine = [h for h, flag in zip(every, group.union(mine, "what the script wrote to parameters")) if flag]
            changed.update(mine)
        sums = (("gradients", 0, [p.grad for p, _ in pairs]), ("parameters", 1, [h.p.data for h in every if h in changed]),
                ("optimizer's states", 2, [t for *_, t, _ in own]))
        for what, at, written_to in sums:
            on = ", ".join(str(rank) for rank, flags in enumerate(said) if flags[at])
            if on:
                _compare(group, f"the checksum of the {what} (the script changed them on rank {on})", written_to)
        written.update(loaded)
    return changed, written


def _compare(group, label, written):
    group.begin_step([(label, float(owner._checksum(written)))])


def _models(found):
    """The models of an optimizer's parameters, in the same order on all ranks."""
    return sorted({h.model for h in found}, key=lambda m: m.number)


def _groups(found):
    return list(dict.fromkeys(m.group for m in _models(found)))


def _end(found, stepped, changed):
    """`changed`: homes whose values the script, or a step of everything, has written where only this rank sees them."""
    with torch.no_grad():
        for home in changed - stepped:
            home.publish()
        for group in _groups(found):
            group.barrier("an optimizer step")
        for home in changed | stepped:
            home.show(home in changed)
    for model in _models(found):
        model.gathered = False
    for home in stepped:
        if home.p.grad is not None:
            torch.autograd.graph.increment_version(home.p)  # a graph of the old values is stale


def _replicated(func, optimizer, found, args, kwargs):
    for model in _models(found):
        model.free_gathered()
        model.refuse_overlaps()
    changed, _ = _begin(optimizer, found, ())
    result = func(optimizer, *args, **kwargs)
    for group in _groups(found):  # from here on nobody reads the old values
        _compare(group, f"the checksum of what {type(optimizer).__name__} computed", [h.p.data for h in found if h.model.group is group])
    _end(found, set(), changed | set(found))
    return result


def _sharded(func, optimizer, found, args, kwargs):
    closure, loss = owner.closure_of(args, kwargs), None
    if closure is not None:  # these classes call it before anything else
        with torch.enable_grad():
            loss = closure()
        args, kwargs = owner._replace_closure(args, kwargs, None)
    for model in _models(found):
        model.free_gathered()
        model.refuse_overlaps()
    divided = [h for h in found if h.shape]  # states of a single number cannot be told from counts of steps: every rank steps scalars
    parts = _Parts(optimizer, divided)
    changed, written = _begin(optimizer, found, parts.whole_states())
    with torch.no_grad():
        parts.show(changed, written)
    try:
        result = func(optimizer, *args, **kwargs)
    finally:
        with torch.no_grad():
            parts.hide()
    with torch.no_grad():
        parts.publish_states(_groups(found))  # after which all ranks have stepped
    scalars = {h for h in found if not h.shape}
    _end(found, set(divided), changed | scalars)
    parts.show_states()
    return result if closure is None else loss


class _Parts:
    """While an optimizer steps, it sees this rank's part of parameters, gradients and states."""

    def __init__(self, optimizer, found):
        self.optimizer, self.found = optimizer, found
        self.places = _places.setdefault(optimizer, {})
        self.saved = []

    def _states_of(self, home, shape):
        """(name, tensor) of the states that have an element for each of the parameter's."""
        state = self.optimizer.state.get(home.p)
        return [] if not state else [(k, t) for k, t in state.items() if isinstance(t, torch.Tensor) and t.ndim and t.shape == shape]

    def whole_states(self):
        """(home, name, tensor, the Region that it shows or None) of each state."""
        found = []
        for home in self.found:
            for name, t in self._states_of(home, home.shape):
                place = self.places.get((home, name))
                found.append((home, name, t, place if place is not None and place.shows(t) else None))
        return found

    def show(self, changed, written):
        """`changed`, `written`: what _begin() returns."""
        whole = self.whole_states()
        self.continued = {(home, name) for home, name, _, place in whole if place is not None}
        self.written = written & self.continued
        for home, name, t, place in whole:
            part = home.mine(t.detach() if place is None else place.whole())
            if (home, name) in self.written:
                part.copy_(home.mine(t))
            elif place is None:
                part = part.clone()
            self.optimizer.state[home.p][name] = part
        for home in self.found:
            home.check()
            p, grad = home.p, home.p.grad
            mine = home.mine(home.region.whole())
            if home in changed:
                mine.copy_(home.mine(p.data))
            self.saved.append((home, p.data, grad))
            p.grad = None
            p.data = mine
            if grad is not None:
                p.grad = home.mine(grad)  # a view, unless the script has put a gradient of other strides there

    def hide(self):
        for home, data, grad in self.saved:
            home.p.grad = None
            home.p.data = data
            home.p.grad = grad
            if grad is not None and self._unscales():
                flat, (first, end) = home.flat(grad), home.part
                for other in (flat[:first], flat[end:]):
                    other.div_(self.optimizer.grad_scale)

    def _unscales(self):
        """A fused step has divided this rank's part of the gradients by the scale of GradScaler."""
        found = getattr(self.optimizer, "found_inf", None)
        return getattr(self.optimizer, "grad_scale", None) is not None and not (found is not None and found.item())

    def publish_states(self, groups):
        """States that are new get a place, on every rank together. Not an older one's: the script may have kept that."""
        now = [(home, name, t) for home in self.found for name, t in self._states_of(home, home.mine(home.region.whole()).shape)]
        for group in groups:
            fresh = [(h, n, t) for h, n, t in now if h.model.group is group and ((h, n) not in self.continued or self.places[h, n].dtype is not t.dtype)]
            told = zlib.crc32(repr([(h.name, n, t.dtype) for h, n, t in fresh]).encode()) if fresh else 0
            every = group.gather([float(told)], "the states of an optimizer")
            if any(row[0] != every[0][0] for row in every):
                raise core.GroupError("castor: fsdp: an optimizer has other states on other ranks: step the same parameters on every rank")
            if fresh:
                made = memory.regions(group, [(h.p, t.dtype, h.p.numel()) for h, _, t in fresh], "the states of an optimizer")
                self.places.update({(h, n): region for (h, n, _), region in zip(fresh, made)})
        self.now = now
        for home, name, t in now:
            mine = home.mine(self.places[home, name].whole())
            if mine.numel() and t.data_ptr() != mine.data_ptr():
                mine.copy_(t)

    def show_states(self):
        for home, name, _ in self.now:
            place = self.places[home, name]
            if (home, name) in self.written:
                place.refresh()
            self.optimizer.state[home.p][name] = place.view()


def install():
    def wrap_hook(profile_hook_step):
        @functools.wraps(profile_hook_step)
        def wrap(func):
            return _outermost(profile_hook_step(_inner(func)))

        return wrap

    patching.replace("torch.optim.Optimizer.profile_hook_step", wrap_hook)
