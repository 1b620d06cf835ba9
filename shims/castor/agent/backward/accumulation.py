"""CASTOR_ACCUMULATE=k for scripts that know nothing of it: the script's step is a micro-step, and every k-th one steps.

A gradient counts 1/k. Between the steps optimizer.step(), zero_grad(), clipping and unscaling do nothing, a scheduler's step
is left out with the optimizer's, and an epoch ends with the last whole step. Gradients stay in the store's sums, to which
the next backward adds: no rank holds gradients of its own (gradients.Synchronizer.carry).

Micro-steps are counted per optimizer, at its step(): a script may call backward() several times for one, and may train
several models. The result must be that of one batch of k times the size. So the script must not change gradients by itself
between the steps, or drop gradients that were made after the last micro-step: both are refused."""
import atexit
import collections
import ctypes
import functools
import weakref

import torch
from torch.optim import lr_scheduler
from torch.utils.data import dataloader

from .. import core, patching
from ..common import store
from ..process import events, iterations

_size = 1
_steps = 0  # calls of any optimizer's step()
_cycles = weakref.WeakKeyDictionary()  # optimizer: Cycle
_synchronizers = weakref.WeakSet()
_cycle_of = {}  # id(parameter): (weak reference to it, Cycle)


def active():
    return _size > 1


def size():
    return _size


class Cycle:
    """The accumulation of one optimizer since its last step."""

    def __init__(self, optimizer):
        self.optimizer = weakref.ref(optimizer)
        self.count = core.Accumulation()
        core.accumulation_begin(self.count, _size)
        self.reached = False  # a backward made gradients since the last micro-step
        self.unheard = set()  # ids of its parameters that have no hook on their gradients yet
        self.calls = 0  # of step()
        self.skipped = False  # the last of them
        self.held = {}  # id(parameter): (gradient, its version) at the last micro-step; (None, 0): in the store

    @property
    def running(self):
        """Micro-steps were made, and their step is still to come."""
        return not core.accumulation_is_empty(self.count)

    @property
    def at_boundary(self):
        """The next micro-step is the one that steps."""
        return bool(core.accumulation_next_at_boundary(self.count))

    def parameters(self):
        optimizer = self.optimizer()
        return [] if optimizer is None else store.parameters_of(optimizer)

    def end(self):
        """The step was made, or skipped after an overflow."""
        core.accumulation_begin(self.count, _size)
        self.reached = False
        self.held.clear()
        for p in self.parameters():
            entry = store.entry_of(p)
            if entry is not None:
                entry.carried = False

    def hold(self):
        """The micro-step is over: its gradients stay until the step."""
        before, self.held = self.held, {}
        pairs = [(store.entry_of(p), p) for p in self.parameters() if p.grad is not None and store.entry_of(p) is not None]
        changed = store.changed(pairs)
        for p in self.parameters():
            known = id(p) in before
            if p.grad is None:
                if known:
                    refuse_change(p)
                continue
            entry = store.entry_of(p)
            in_store = entry is not None and entry.synchronizer.carry(entry, p, known, entry in changed)
            self.held[id(p)] = (None, 0) if in_store else (p.grad, p.grad._version)

    def check_held(self):
        """Only backward() may change accumulated gradients. (The synchronizer checks those in the store.)"""
        for p in self.parameters():
            grad, version = self.held.get(id(p), (None, 0))
            if grad is not None and (p.grad is not grad or grad._version != version):
                refuse_change(p)


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
    for p in cycle.parameters():
        known = _cycle_of.get(id(p))
        if known is None or known[0]() is not p:
            _cycle_of[id(p)] = weakref.ref(p), cycle
            cycle.unheard.add(id(p))
        if id(p) in cycle.unheard and p.requires_grad and p.is_leaf:  # frozen ones may be trained later
            cycle.unheard.discard(id(p))
            p.register_post_accumulate_grad_hook(_reached)
    return cycle


def _cycle_at(p):
    """The cycle of the optimizer that steps a parameter; None if none does."""
    known = _cycle_of.get(id(p))
    return known[1] if known is not None and known[0]() is p else None


def _reached(p):
    cycle = _cycle_at(p)
    if cycle is not None:
        cycle.reached = True


def at_boundary(parameters):
    """Whether an operation on the gradients of these parameters acts now."""
    if not active():
        return True
    cycles = {_cycle_at(p) for p in parameters} - {None}
    acting = {cycle.at_boundary for cycle in cycles}
    if len(acting) > 1:
        raise core.Error("castor: gradients of several optimizers are clipped or unscaled together, and only some of them "
                         "step now: with CASTOR_ACCUMULATE step them equally often, or clip them one by one")
    return acting != {False}


# ---- events


class Observer(events.Observer):
    def backward_begun(self, outputs, create_graph):
        if create_graph:
            raise core.Error("castor: backward(create_graph=True) cannot be accumulated: use CASTOR_ACCUMULATE=1")
        for cycle in list(_cycles.values()):
            if cycle.running and not cycle.reached:
                cycle.check_held()
        with torch.no_grad():
            for synchronizer in list(_synchronizers):
                synchronizer.hide_carried()

    def scaled(self, roots):
        """Each micro-step counts 1/k."""
        return tuple(root if root is None else root / _size for root in roots)

    def backward_left(self):
        for synchronizer in list(_synchronizers):
            synchronizer.show_carried()


def skips_step(optimizer, closure, separable):
    """Counts a call of step(). True: it is a micro-step, and nothing is stepped."""
    global _steps
    if closure is not None and not separable:
        raise core.Error(f"castor: {type(optimizer).__name__} may evaluate its closure several times for a step, which "
                         "CASTOR_ACCUMULATE cannot spread over micro-steps: use CASTOR_ACCUMULATE=1")
    cycle = _cycle(optimizer)
    if closure is None and not cycle.reached:
        cycle.check_held()
    _steps += 1
    cycle.calls += 1
    cycle.skipped = not cycle.at_boundary
    return cycle.skipped


def micro_step_over(optimizer):
    cycle = _cycles[optimizer]
    cycle.hold()
    core.accumulation_count(cycle.count)
    cycle.reached = False


def step_over(optimizer):
    _cycles[optimizer].end()


def not_zeroed(parameters):
    """Those of these parameters whose gradients must not be cleared now."""
    carried = []
    for p in parameters if active() else ():
        cycle = _cycle_at(p)
        if cycle is None or not cycle.running:
            continue
        if cycle.reached:
            raise core.Error(
                "castor: the script clears gradients that were made after optimizer.step(), and CASTOR_ACCUMULATE has "
                "added them to those of the micro-steps before: keep that backward away from this model "
                "(requires_grad_(False), or detach() its output), or use CASTOR_ACCUMULATE=1"
            )
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
        calls = cycle.calls
        result = maybe(self, optimizer, optimizer_state, *args, **kwargs)
        if cycle.calls == calls:  # an overflow: this step is skipped, with all its micro-steps
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
                made, seen[self] = cycle.calls - seen.get(self, 0), cycle.calls
                if made == 1 and cycle.skipped:
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
    """One iteration over a DataLoader. Its incomplete tail is dropped if the batches are trained on: if some optimizer's
    step() was called since the iteration began."""

    def __init__(self, iterator):
        self.served, self.steps = 0, _steps
        self.whole = self.length = None  # of a loader with a length: batches of whole steps, and all batches
        self.ahead = collections.deque()  # of one without: the batches of the next step
        self.ends = False  # those are too few for a step
        if iterator._dataset_kind == dataloader._DatasetKind.Map:
            try:
                self.length = len(iterator._index_sampler)
            except TypeError:
                return
            whole, steps = ctypes.c_int64(), ctypes.c_int64()
            core.accumulation_length(self.length, _size, ctypes.byref(whole), ctypes.byref(steps))
            self.whole = whole.value

    def following(self, draw):
        if self.whole is None:
            self._look_ahead(draw)
        if _steps != self.steps and (self.ends if self.whole is None else self.served >= self.whole):
            self._end()
        batch = draw() if self.whole is not None else self.ahead.popleft() if self.ahead else self._end()
        self.served += 1
        return batch

    def _look_ahead(self, draw):
        while not self.ends and (self.ahead or self.served % _size == 0) and len(self.ahead) < _size - self.served % _size:
            try:
                self.ahead.append(draw())
            except StopIteration:
                self.ends = True

    def _end(self):
        if _steps != self.steps and self.served < _size:
            raise core.Error(f"castor: an epoch has {self.served + len(self.ahead) if self.length is None else self.length} "
                             f"batches and CASTOR_ACCUMULATE={_size} needs {_size} for a step: use smaller batches or a "
                             "smaller CASTOR_ACCUMULATE")
        raise StopIteration


def _wrap_loaders():
    def begin(iterator, loader):
        iterator._castor_epoch = _Epoch(iterator) if torch.is_grad_enabled() and store.active() else None

    def following(iterator, draw):
        epoch = getattr(iterator, "_castor_epoch", None)
        return draw() if epoch is None else epoch.following(draw)

    iterations.wrap(begin, following)


def _say_what_is_left():
    left = max((cycle.count.count for cycle in _cycles.values()), default=0) if store.active() else 0
    if left:
        core.log(1, f"the last {left} of CASTOR_ACCUMULATE={_size} micro-steps were followed by no step: their gradients "
                    "changed nothing".encode())


def install():
    """Before the rest of the plugin: the wrapper that splits a DataLoader's batches must see those that are handed out."""
    global _size
    _size = core.options.accumulate
    if not active():
        return
    patching.replace("torch.optim.Optimizer.add_param_group", _watch_optimizers)
    _wrap_loaders()
    patching.replace("torch.amp.GradScaler._maybe_opt_step", _wrap_scaler_step)
    patching.replace("torch.amp.GradScaler.update", _wrap_scaler_update)
    _wrap_schedulers()
    atexit.register(_say_what_is_left)
