"""CASTOR_ACCUMULATE=k for scripts that know nothing of it: the script's step is a micro-step, and every k-th one steps.

A gradient counts 1/k. Between the steps optimizer.step(), zero_grad(), clipping and unscaling do nothing, a scheduler's step
is left out with the optimizer's, and an epoch ends with the last whole step. Gradients stay in the store's sums, to which
the next backward adds: no rank holds gradients of its own (gradients.hide_carried).

Micro-steps are counted per optimizer, at its step(): a script may call backward() several times for one, and may train
several models. The result must be that of one batch of k times the size, before which the script did what it does between
the micro-steps. So between them it may change hyperparameters and states, of which the step makes use, and nothing
that a gradient depends on: not the gradients, the parameters' values, nor which parameters the optimizer trains. Each step()
compares these with what the last one found."""
import atexit
import collections
import contextlib
import ctypes
import functools
import sys
import typing
import weakref

import torch
from torch.optim import lr_scheduler
from torch.utils.data import dataloader

from .. import core, patching
from ..common import store, tensors
from ..process import events, iterations
from . import gradients

_size = 1
_steps = 0  # calls of any optimizer's step()
_cycles = weakref.WeakKeyDictionary()  # optimizer: Cycle
_synchronizers = weakref.WeakSet()
_cycles_of = {}  # id(parameter): the cycles of the optimizers that have it
_waiting = {}  # id(parameter): (weak reference to it, the cycle that has gradients of it and has not stepped)
_hooked = {}  # id(parameter): weak reference to it
_shown = {}  # id(parameter): (weak reference to p.grad, its digest; None: the store knows), after the last backward
_renormed = {}  # id(parameter): weak reference to it: forward passes change it (Embedding with max_norm)


def active():
    return _size > 1


def size():
    return _size


def _digest(t):
    """Changes with the values of a tensor. On devices, where nobody else waits for them, it is their version."""
    t = t.detach()
    if t.device.type != "cpu" or t.layout is not torch.strided or not t.numel():
        return t._version
    return core.digest(t.data_ptr(), tensors.extent(t))


class Held(typing.NamedTuple):
    """The gradient of a parameter at the last micro-step."""

    parameter: weakref.ref
    shape: tuple
    grad: typing.Optional[torch.Tensor]  # None: the store has it
    digest: int


class Trained(typing.NamedTuple):
    """A parameter before the first backward of a cycle."""

    shape: tuple
    requires_grad: bool
    digest: int  # of its values


class Cycle:
    """The accumulation of one optimizer since its last step."""

    def __init__(self, optimizer):
        self.optimizer, self.name = weakref.ref(optimizer), type(optimizer).__name__
        self.state = core.Cycle()  # which the core changes (interpose/training/accumulate.h)
        core.accumulation_begin(self.state.micro_steps, _size)
        self.held = {}  # id(parameter): Held, also of parameters that no optimizer has
        self.trained = {}  # id(parameter): Trained

    @property
    def running(self):
        """Micro-steps were made, and their step is still to come."""
        return core.cycle_phase(self.state) >= core.CYCLE_WAITING

    def parameters(self):
        optimizer = self.optimizer()
        return [] if optimizer is None else [p for p in store.parameters_of(optimizer) if not tensors.lacks_data(p)]

    def end(self):
        """The step was made, or skipped after an overflow."""
        core.cycle_happens(self.state, core.CYCLE_END)
        entries = [store.entry_of(held.parameter()) for held in self.held.values() if held.parameter() is not None]
        store.carry({e: False for e in entries if e is not None})
        for key in self.held:
            if _waiting.get(key, (None, None))[1] is self:
                del _waiting[key]
        self.held.clear()
        self.trained.clear()

    def hold(self):
        """The micro-step is over: its gradients stay until the step."""
        own, before, self.held = self.parameters(), self.held, {}
        outside = _outside()
        with_gradient = [p for p in own + outside if p.grad is not None]
        changed = {id(p) for p in _changed(with_gradient)}
        unsynced = {e for s in _synchronizers if s.unsynced for e in s.entries}
        for p in own:
            gone = p.grad is None and (id(p) in before or id(p) in _shown)
            if gone or id(p) in changed and (id(p) in before or self.state.reached or p.grad.any()):
                refuse_change(p)
        entries = {id(p): store.entry_of(p) for p in with_gradient}
        store.carry({e: e not in unsynced and key not in changed for key, e in entries.items() if e is not None})
        for p in with_gradient:
            in_store = entries[id(p)] is not None and entries[id(p)].carried
            self.held[id(p)] = Held(weakref.ref(p), tuple(p.shape), *((None, 0) if in_store else (p.grad, _digest(p.grad))))
        for p in own:
            if p.grad is not None:
                _waiting[id(p)] = weakref.ref(p), self
        core.cycle_happens(self.state, core.CYCLE_HOLD)

    def backward_begins(self):
        phase, own = core.cycle_phase(self.state), self.parameters()
        if phase == core.CYCLE_EMPTY:  # what its first gradients belong to
            self.trained = {id(p): seen for p, seen in zip(own, _seen(own))}
        elif phase == core.CYCLE_WAITING:
            self.check_held()
        else:
            for p in _changed([p for p in own if p.grad is not None]):
                if p.grad.any():
                    refuse_change(p)

    def check_held(self):
        """Only backward() may change accumulated gradients. (hide_carried checks those in the store.)"""
        for p in self.parameters():
            held = self.held.get(id(p))
            if held is not None and held.grad is not None and (p.grad is not held.grad or _digest(p.grad) != held.digest):
                refuse_change(p)

    def check_trained(self):
        """Step() is called: what the gradients so far belong to must be what it was at the first of them."""
        own = self.parameters()
        for p in own:
            held_by, cycle = _waiting.get(id(p), (lambda: None, None))
            if held_by() is p and cycle is not self and cycle.running:
                raise core.Error(
                    f"castor: a parameter of shape {tuple(p.shape)} is stepped by this {self.name}, while gradients of CASTOR_ACCUMULATE="
                    f"{_size} micro-steps wait for the step of another optimizer ({cycle.name}): give each parameter to one optimizer, change "
                    f"optimizers when the old one has stepped, once in {_size} calls of step(), or use CASTOR_ACCUMULATE=1")
        if not self.trained:  # no backward yet
            return
        ids, with_gradient = {id(p) for p in own}, self.held.keys() | _shown.keys()
        for key, trained in self.trained.items():
            if trained.requires_grad and key not in ids and key in with_gradient:
                self._refuse_edit(trained.shape, "was taken from its optimizer, or replaced,")
        for p, now in zip(own, _seen(own)):
            trained = self.trained.get(id(p), now if id(p) in self.held else Trained((), False, 0))
            if now.requires_grad and not trained.requires_grad:
                self._refuse_edit(p.shape, "began to be trained")
            elif trained.requires_grad and not now.requires_grad and id(p) in with_gradient:
                self._refuse_edit(p.shape, "was frozen")
            elif trained.requires_grad and now.digest != trained.digest:
                self._refuse_edit(p.shape, "was changed by the script")

    def _refuse_edit(self, shape, what):
        raise core.Error(
            f"castor: a parameter of shape {tuple(shape)} {what} between the micro-steps of CASTOR_ACCUMULATE={_size}, and its gradients "
            f"so far belong to what was before: do it when the optimizer has stepped, once in {_size} calls of step(), or use CASTOR_ACCUMULATE=1")


def watch(synchronizer):
    """Registers a synchronizer, whose sums are carried from micro-step to micro-step."""
    if active():
        _synchronizers.add(synchronizer)


def refuse_change(p):
    raise core.Error(
        f"castor: the gradient of a parameter of shape {tuple(p.shape)} was cleared, replaced or changed by the script "
        "between the micro-steps of CASTOR_ACCUMULATE: use optimizer.zero_grad(), clip_grad_norm_ and clip_grad_value_, "
        "which act at the step only, or CASTOR_ACCUMULATE=1"
    )


def _cycle(optimizer):
    cycle = _cycles.get(optimizer)
    if cycle is None:
        cycle = _cycles[optimizer] = Cycle(optimizer)
    _look()
    return cycle


def _look():
    """Which parameters the optimizers have now: scripts edit their groups by hand."""
    _cycles_of.clear()
    for cycle in list(_cycles.values()):
        for p in cycle.parameters():
            _cycles_of.setdefault(id(p), []).append(cycle)
            if p.requires_grad and p.is_leaf and not _is(_hooked, p):  # frozen ones may be trained later
                _hooked[id(p)] = weakref.ref(p)
                p.register_post_accumulate_grad_hook(_reached)


def _is(known, p):
    """Whether a table of weak references by id has this parameter, and not one that had its id."""
    return id(p) in known and known[id(p)]() is p


def _reached(p):
    for cycle in _cycles_of.get(id(p), ()):
        if not cycle.state.reached:
            core.cycle_happens(cycle.state, core.CYCLE_REACHED)
    if not all(map(tensors.is_castors, (p._backward_hooks or {}).values())):
        _say_of_hooks()


@functools.cache
def _say_of_hooks():
    core.log(1, b"a parameter has a hook on its gradient (register_hook), which CASTOR_ACCUMULATE calls with each micro-step's: what it "
                b"does must be linear in the gradient (a mask, a factor; not a clamp) to be that of one batch")


def _outside():
    """Parameters whose gradients are summed and which no optimizer has: they are accumulated with those that one has."""
    found = {e: e.parameter() for s in _synchronizers for e in s.entries}
    return [p for p in found.values() if p is not None and id(p) not in _cycles_of]


def _cycles_with(parameters):
    """The cycles to which a call for these parameters belongs. Those that no optimizer has go with the others, or with all."""
    found = {cycle for p in parameters for cycle in _cycles_of.get(id(p), ())}
    return found or set(_cycles.values())


def _states(cycles):
    return (core.Cycle * len(cycles))(*[cycle.state for cycle in cycles]), len(cycles)


def at_boundary(parameters):
    """Whether an operation on the gradients of these parameters acts now."""
    if not active():
        return True
    _look()
    acts = core.cycles_act(*_states(_cycles_with(parameters)))
    if acts == core.CYCLE_ACTS | core.CYCLE_LEAVES_OUT:
        raise core.Error("castor: gradients of several optimizers are clipped or unscaled together, and only some of them "
                         "step now: with CASTOR_ACCUMULATE step them equally often, or clip them one by one")
    return acts != core.CYCLE_LEAVES_OUT


def goes_on(p):
    """Whether the next backward may add to the sum of this parameter's gradients."""
    return active() and bool(core.cycles_act(*_states(_cycles_with([p]))) & core.CYCLE_LEAVES_OUT)


# ---- what the script changes


def _is_untouched_window(p, entry):
    """Whether p.grad shows a sum, and backward passes have added nothing to it: then the store knows what was written."""
    return entry is not None and entry.synced and entry.shows_window(p.grad)


def _changed(parameters):
    """Those of these parameters, which have gradients, whose gradients are not what the last backward has left."""
    pairs = [(store.entry_of(p), p) for p in parameters]
    windows = [(entry, p) for entry, p in pairs if _is_untouched_window(p, entry)]
    edited = store.changed(windows)

    def is_changed(p, entry):
        if _is_untouched_window(p, entry):
            return entry in edited
        grad, digest = _shown.get(id(p), (lambda: None, 0))
        return grad() is not p.grad or _digest(p.grad) != digest

    return [p for entry, p in pairs if is_changed(p, entry)]


def _note_shown():
    """A backward is over."""
    _shown.clear()
    for p in [p for cycle in list(_cycles.values()) for p in cycle.parameters()] + _outside():
        if p.grad is not None:
            known = _is_untouched_window(p, store.entry_of(p))
            _shown[id(p)] = weakref.ref(p.grad), None if known else _digest(p.grad)


def _seen(parameters):
    """Each parameter as it is now. Of one in the store only what this rank has written counts, so that nothing is loaded which a budget
    has put away."""
    entries = [store.entry_of(p) for p in parameters]
    shared = [e for e in entries if e is not None and e.shared]
    away = store.look(shared) if shared else None
    in_place = {e for e, moved in zip(shared, away or [False] * len(shared)) if not moved}
    listed = [e for e in shared if e in in_place]
    found = (ctypes.c_uint64 * max(len(listed), 1))()
    core.edits_digest(store.handles(listed), len(listed), found)
    digests = dict(zip(listed, found))

    def digest(p, entry):
        return None if _is(_renormed, p) else digests[entry] if entry in digests else _digest(p)

    return [Trained(tuple(p.shape), p.requires_grad, digest(p, e)) for p, e in zip(parameters, entries)]


def _watch_renorm(stock):
    """Embedding(max_norm=...) shortens the rows that a forward looks up, in each micro-step those of its samples: as one batch does."""

    @functools.wraps(stock)
    def _no_grad_embedding_renorm_(weight, *args, **kwargs):
        _renormed[id(weight)] = weakref.ref(weight)
        return stock(weight, *args, **kwargs)

    return _no_grad_embedding_renorm_


# ---- events


class Observer(events.Observer):
    def backward_begun(self, outputs, create_graph):
        if create_graph:
            raise core.Error("castor: backward(create_graph=True) cannot be accumulated: use CASTOR_ACCUMULATE=1")
        _look()
        for cycle in list(_cycles.values()):
            cycle.backward_begins()
        with torch.no_grad():
            gradients.hide_carried(list(_synchronizers))

    def scaled(self, roots):
        """Each micro-step counts 1/k."""
        return tuple(root if root is None else root / _size for root in roots)

    def backward_left(self):
        gradients.show_carried()
        _note_shown()


def skips_step(optimizer, closure, separable):
    """Counts a call of step(). True: it is a micro-step, and nothing is stepped."""
    global _steps
    if closure is not None and not separable:
        raise core.Error(f"castor: {type(optimizer).__name__} may evaluate its closure several times for a step, which "
                         "CASTOR_ACCUMULATE cannot spread over micro-steps: use CASTOR_ACCUMULATE=1")
    cycle = _cycle(optimizer)
    cycle.check_trained()
    if closure is None and core.cycle_phase(cycle.state) == core.CYCLE_WAITING:
        cycle.check_held()
    _steps += 1
    return bool(core.cycle_happens(cycle.state, core.CYCLE_STEP))


def micro_step_over(optimizer):
    _cycles[optimizer].hold()


def step_over(optimizer):
    _cycles[optimizer].end()


def not_zeroed(parameters):
    """Those of these parameters whose gradients must not be cleared now."""
    if not active():
        return []
    _look()
    parameters, carried = list(parameters), []
    others = _cycles_with(parameters)
    for p in parameters:
        answer = core.cycles_zero(*_states(_cycles_of.get(id(p), others)))
        if answer == core.CYCLE_REFUSES:
            raise core.Error(
                "castor: the script clears gradients that were made after optimizer.step(), and CASTOR_ACCUMULATE has "
                "added them to those of the micro-steps before: keep that backward away from this model "
                "(requires_grad_(False), or detach() its output), or use CASTOR_ACCUMULATE=1"
            )
        if answer == core.CYCLE_LEAVES_OUT:
            carried.append(p)
    return carried


# ---- what is left out between steps


def _watch_optimizers(add):
    @functools.wraps(add)
    def add_param_group(self, param_group):
        add(self, param_group)
        _cycle(self)

    return add_param_group


def _wrap_scaler_step(maybe):
    @functools.wraps(maybe)
    def _maybe_opt_step(self, optimizer, optimizer_state, *args, **kwargs):
        cycle = _cycle(optimizer)
        calls = cycle.state.calls
        result = maybe(self, optimizer, optimizer_state, *args, **kwargs)
        if cycle.state.calls == calls:  # an overflow: this step is skipped, with all its micro-steps
            cycle.end()
        return result

    return _maybe_opt_step


def _wrap_scaler_update(update):
    @functools.wraps(update)
    def scaler_update(self, new_scale=None):
        """The scale stays the same through all micro-steps of a step."""
        if not self.is_enabled():  # then it has no states
            return update(self, new_scale)
        running = {id(optimizer) for optimizer, cycle in _cycles.items() if cycle.running}
        scaled_now = set(self._per_optimizer_states)
        if not scaled_now & running:
            return update(self, new_scale)
        if new_scale is not None or scaled_now - running:
            raise core.Error("castor: GradScaler.update() changes the scale between the micro-steps of an optimizer: with "
                             "CASTOR_ACCUMULATE step all optimizers of a scaler equally often")
        self._per_optimizer_states.clear()
        return None

    return scaler_update


def _wrap_schedulers():
    """A scheduler's step is left out if its optimizer was stepped once since the scheduler's last, and that step was left out."""
    seen = weakref.WeakKeyDictionary()  # scheduler: calls of its optimizer's step() at its own last step
    nested = []

    def wrap(step):
        @functools.wraps(step)
        def scheduler_step(self, *args, **kwargs):
            if nested:
                return step(self, *args, **kwargs)
            cycle = _cycles.get(getattr(self, "optimizer", None)) if hasattr(self, "optimizer") else None
            if cycle is not None:
                calls = seen.setdefault(self, ctypes.c_int64())
                if core.cycle_schedule(cycle.state, ctypes.byref(calls)) == core.CYCLE_LEAVES_OUT:
                    return None
            nested.append(self)
            try:
                return step(self, *args, **kwargs)
            finally:
                nested.pop()

        return scheduler_step

    def init_subclass(cls, **kwargs):
        super(lr_scheduler.LRScheduler, cls).__init_subclass__(**kwargs)
        if "step" in cls.__dict__:
            patching.put(cls, "step", wrap(cls.__dict__["step"]))

    patching.replace("torch.optim.lr_scheduler.*.step", wrap)
    patching.replace("torch.optim.lr_scheduler.LRScheduler.__init_subclass__", lambda _: classmethod(init_subclass))


class _Epoch:
    """One iteration over a DataLoader."""

    def __init__(self, iterator):
        length = -1
        if iterator._dataset_kind == dataloader._DatasetKind.Map:
            with contextlib.suppress(TypeError):
                length = len(iterator._index_sampler)
        self.state = core.Epoch(size=_size, length=length, steps=_steps)  # which the core changes
        self.ahead = collections.deque()  # the batches that were drawn before they were asked for

    def following(self, draw):
        does, batch = ctypes.c_int(core.EPOCH_AHEAD), None
        while does.value == core.EPOCH_AHEAD:
            core.epoch_next(self.state, _steps, ctypes.byref(does))
            if does.value == core.EPOCH_TAKES:
                return self.ahead.popleft()
            if does.value == core.EPOCH_ENDS:
                raise StopIteration
            try:
                batch = draw()
            except StopIteration:
                core.epoch_drawn(self.state, 0)
                if does.value == core.EPOCH_DRAWS:
                    raise
                continue
            core.epoch_drawn(self.state, 1)
            if does.value == core.EPOCH_AHEAD:
                self.ahead.append(batch)
        return batch


def _wrap_loaders():
    def begin(iterator, loader):
        iterator._castor_epoch = _Epoch(iterator) if torch.is_grad_enabled() and store.active() else None

    def following(iterator, draw):
        epoch = getattr(iterator, "_castor_epoch", None)
        return draw() if epoch is None else epoch.following(draw)

    iterations.wrap(begin, following)


def _say_what_is_left():
    left = max((cycle.state.micro_steps.count for cycle in _cycles.values()), default=0) if store.active() else 0
    if left and not hasattr(sys, "last_value"):  # an exception that ends the script says more
        core.log(1, f"the last {left} of CASTOR_ACCUMULATE={_size} micro-steps were followed by no step: their gradients "
                    "changed nothing".encode())


def install():
    """Before the rest of the plugin: the wrapper that splits a DataLoader's batches must see those that are handed out."""
    global _size
    _size = core.options.accumulate
    if not active():
        return
    patching.replace("torch.optim.Optimizer.add_param_group", _watch_optimizers)
    patching.replace("torch.nn.functional._no_grad_embedding_renorm_", _watch_renorm)
    _wrap_loaders()
    patching.replace("torch.amp.GradScaler._maybe_opt_step", _wrap_scaler_step)
    patching.replace("torch.amp.GradScaler.update", _wrap_scaler_update)
    _wrap_schedulers()
    atexit.register(_say_what_is_left)
