"""A step in owner mode: a rank steps only what it owns, in the store's memory, and publishes it."""
import ctypes
import functools
import threading

import torch

from .. import core
from ..common import parts, store
from ..device import step_parts
from ..nodes import remote
from ..precision import masters
from . import agreed, owner_on_devices, states


class _Thread(threading.local):
    running = None  # the outermost step of this thread (Running)
    in_owner_step = False  # a step in owner mode runs


thread = _Thread()


class Running:
    """The running outermost step of this thread: its mode, and the numbers that the ranks of a single-process script (job) still
    have to compare at its beginning."""

    def __init__(self, optimizer):
        self.optimizer, self.mode = optimizer, core.MODE_PLAIN
        self.job, self.said = None, []

    def say(self, job):
        self.job, self.said = job, job.said_before_step(self.optimizer)

    def heard(self, every):
        """Compares the numbers of each rank."""
        if self.said:
            if self.job.nodes is not None:  # these are this node's
                every = self.job.group.gather(self.said, "the gradients before a step")
            self.said = []
            self.job.compare_before_step(every)

    def compare_alone(self):
        """Compares the numbers before a step that begins without a barrier."""
        if self.said:
            self.heard(self.job.group.gather(self.said, "the gradients before a step"))


def pairs_of(optimizer):
    """(parameter, entry) of the optimizer's registered parameters, in its order."""
    pairs = ((p, store.entry_of(p)) for p in store.parameters_of(optimizer))
    return [(p, entry) for p, entry in pairs if entry is not None]


def closure_of(args, kwargs):
    closure = kwargs.get("closure") or (args[0] if args else None)
    return closure if callable(closure) else None


class _OwnerStep:
    """One step of a separable class, over one group."""

    def __init__(self, optimizer, group, pairs, closure, divisible):
        self.optimizer, self.group, self.closure, self.divisible = optimizer, group, closure, divisible
        self.pairs = pairs
        self.states = states.of(optimizer)
        self._find_shared()
        self.known = len(optimizer.state)
        self.untouched = set()  # indices whose gradient is the unedited sum
        self.stepped, self.hidden, self.swapped, self.entered = [], [], [], []
        self.masters_shown = None

    def _find_shared(self):
        self.shared = [(i, p, e) for i, (p, e) in enumerate(self.pairs) if e.shared]
        self.handles = store.handles([e for _, _, e in self.shared])

    def begin(self, running):
        """One barrier of the ranks, or more if the script has moved something or changed gradients. Owners step for all ranks, so
        all must have changed the gradients alike. (A closure makes its gradients later.)"""
        changed, away, moved = self._changed(), *self._look()
        every = self.group.begin_step(agreed.values(self.optimizer, self.pairs), [float(changed), float(moved), *(running.said if running else ())])
        if running:
            running.heard([said for _, _, *said in every])
        settles = any(moved for _, moved, *_ in every)
        if settles:
            self._settle(away)
        changed_on = [str(rank) for rank, (changed, *_) in enumerate(every) if changed]
        checksum = []
        if changed_on:
            label = f"the checksum of the gradients (the script changed them on rank {', '.join(changed_on)})"
            checksum = [(label, float(agreed.checksum(p.grad for _, p, _ in self.shared)))]
        if changed_on or settles:
            self.group.begin_step(checksum)
        if self.group.sharded:
            self.group.across.meet()

    def _find_untouched(self, tensors):
        shown = [(i, e) for i, p, e in tensors if e.shows_window(p.grad)]
        edited = store.edited([e for _, e in shown])
        self.untouched = {i for i, e in shown if e not in edited}

    def _changed(self):
        """Whether some gradient on this rank is not the untouched sum."""
        if self.closure:
            return False
        self._find_untouched(self.shared)
        return any(p.grad is not None and i not in self.untouched for i, p, _ in self.shared)

    def _look(self):
        """(indices of the pairs with a state outside of the store, whether the script has moved anything), on this rank."""
        away = self.states.away(self.optimizer, self.pairs)
        return away, store.look([e for _, e in self.pairs]) is not None or bool(away)

    def _settle(self, away):
        """On every rank: settles what the script has moved on one."""
        described = self.states.describe(self.optimizer, self.group, self.pairs, away)
        # States of a master are copied to their place: the optimizer sees them only there.
        described = [(digest, is_away, reached and masters.of(p) is None)
                     for (digest, is_away, reached), (p, _) in zip(described, self.pairs)]
        left = store.settle(self.group, [e for _, e in self.pairs], described)
        if left and self.group.across is not None:
            raise core.GroupError(f"castor: the script gives a parameter of shape {tuple(left[0].parameter().shape)} memory that "
                                  "something else can reach, or that differs between ranks: on several nodes set its values "
                                  "in place (p.data.copy_())")
        for entry in left:
            masters.refuse_leaving(entry.parameter())
        self._find_shared()

    def closure_over(self):
        """No rank reads the old parameters any more: the owners write them next."""
        if self.group.single:
            self.group.across.meet()
        away, moved = self._look()
        if any(moved for moved, in self.group.gather([float(moved)], "what the script moved in a step's closure")):
            self._settle(away)

    def owned(self):
        """(index, parameter, entry) of each parameter that this rank steps."""
        return [t for t in self.shared if t[2].stepped_here and t[1].grad is not None]

    def show_owned(self, part):
        """From here on the optimizer sees only `part` of what this rank owns, and sees it in the store's memory. Parameters that
        are not shared it sees in the first part."""
        if self.closure:
            self._find_untouched(part)
        own = [(p, e) for _, p, e in part]
        core.publish_push(core.pointers([e.handle for _, e in own]), len(own))
        for i, p, e in part:
            if masters.of(p) is not None:
                continue
            self._swap(p, e.param_alias)
            if i in self.untouched:
                self._swap(p.grad, e.sum_alias)
        self._show_masters(part)
        self.entered = self.states.enter(self.optimizer, own)
        here = {i for i, _, _ in part}
        self.hidden = [(p, p.grad) for i, p, _ in self.shared if i not in here and p.grad is not None]
        if self.stepped and not self.closure:
            self.hidden += [(p, p.grad) for p in self._not_shared() if p.grad is not None]
        for p, _ in self.hidden:
            p.grad = None

    def _show_masters(self, part):
        seen = [(p, e.param_alias, e.sum_alias if i in self.untouched else p.grad) for i, p, e in part]
        if not self.stepped:
            seen += [(p, p.data, p.grad) for p, e in self.pairs if not e.shared and p.grad is not None]
        self.masters_shown = masters.MastersShown(self.optimizer, [s for s in seen if masters.of(s[0]) is not None])

    def _not_shared(self):
        shared = {id(p) for _, p, _ in self.shared}
        return (p for p in store.parameters_of(self.optimizer) if id(p) not in shared)

    def _swap(self, t, alias):
        self.swapped.append((t, t.data, alias))
        t.data = alias

    def show_all(self):
        if self.masters_shown is not None:
            self.masters_shown.leave()
        for p, grad in self.hidden:
            if p.grad is None:
                p.grad = grad
        for t, data, alias in self.swapped:
            if t.data_ptr() == alias.data_ptr():
                t.data = data
            else:  # the optimizer put another tensor there
                alias.copy_(t.data)
                t.data = data
        self.states.leave(self.entered)
        self.hidden, self.swapped, self.entered = [], [], []

    def step_in_parts(self, step):
        owned = self.owned()
        own_memory = masters.dtype is not None or self.states.has_new(owned)
        for number, part in enumerate(parts.divide(self.group, owned, lambda t: t[2].bytes, self.divisible, own_memory)):
            kinds = parts.PARAMETERS | parts.SUMS | parts.STATES
            with parts.in_memory(self.group, kinds, number, [e for _, _, e in part]):
                self.show_owned(part)
                result = step()
                with torch.no_grad():
                    self.show_all()
                    self.states.keep(self.optimizer, self.group, part)
            self.stepped += part
        return result

    def end(self):
        if self.closure:
            self.states.keep(self.optimizer, self.group, self.stepped)
        directory = self.states.directory(self.optimizer, self.group, self.stepped)
        stepped = [e for _, _, e in self.stepped]
        if self.group.sharded:
            unscales = getattr(self.optimizer, "grad_scale", None) is not None  # a fused step unscales for GradScaler
            received, directory = self.group.across.spread([e for _, _, e in self.shared], stepped, directory, unscales)
            stepped = stepped + received
        states.directory_put(self.group, directory)
        core.publish_mark(store.handles(stepped), len(stepped))
        changed = (ctypes.c_uint8 * max(len(self.shared), 1))()
        core.publish_end(self.group.handle, self.handles, len(self.shared), changed)
        for (_, p, e), published in zip(self.shared, changed):
            if not published:
                continue
            if not e.stepped_here:
                torch.autograd.graph.increment_version(p)
        masters.published([p for (_, p, _), published in zip(self.shared, changed) if published])
        added = len(self.optimizer.state) > self.known  # in the order of the parts
        self.states.fetch(self.optimizer, self.group, self.pairs, added)


def _on_devices(func, optimizer, pairs, args, kwargs, divisible, running):
    """A step of model data on devices, by owners, or in parts. The classes here call a closure before anything else."""
    closure = closure_of(args, kwargs)
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
        args, kwargs = _replace_closure(args, kwargs, None)

    def run():
        return func(optimizer, *args, **kwargs)

    if pairs and not owner_on_devices.steps_locally(optimizer, pairs):
        if running:
            running.mode = core.MODE_OWNER
        result = owner_on_devices.step(optimizer, pairs, run, divisible, running)
    else:
        if running:
            running.compare_alone()
        result = step_parts.step_or_run(optimizer, run, divisible)
    return result if closure is None else loss


def is_local(pairs):
    return any(p.grad is not None and not e.synced for p, e in pairs)


def by_owners(func, divisible=False):
    """Wraps the `step` of a separable class. `divisible`: it counts steps per parameter only, so it may be called for
    some parameters now and for others later."""

    @functools.wraps(func)
    def step(self, *args, **kwargs):
        running = thread.running
        if thread.in_owner_step or not store.active():
            return func(self, *args, **kwargs)
        pairs = pairs_of(self) if not masters.on_devices(self) else []
        if running and running.optimizer is not self and any(len(of(self)) != len(of(running.optimizer)) for of in (pairs_of, owner_on_devices.pairs_of)):
            return func(self, *args, **kwargs)  # the outer one divides the parameters in its own way (ZeRO)
        closure = closure_of(args, kwargs)
        if not pairs:
            on_devices = owner_on_devices.pairs_of(self)
            if on_devices or step_parts.wanted(self, divisible):
                return _on_devices(func, self, on_devices, args, kwargs, divisible, running)
            if running:
                running.compare_alone()
            return func(self, *args, **kwargs)
        if closure is None and is_local(pairs):
            masters.refuse_local(p for p, _ in pairs)
            remote.bring_here(self)
            states.of(self).local = True
            if running:
                running.mode = core.MODE_LOCAL
        if states.of(self).local:  # in its own views from now on; equal pages are shared again
            if running:
                running.compare_alone()
            return func(self, *args, **kwargs)
        if running:
            running.mode = core.MODE_OWNER
        owner_step = _OwnerStep(self, pairs[0][1].group, pairs, closure, divisible)
        owner_step.begin(running)
        thread.in_owner_step = True
        try:
            if closure is None:
                result = owner_step.step_in_parts(lambda: func(self, *args, **kwargs))
            else:
                args, kwargs = _replace_closure(args, kwargs, _closure_with_all(owner_step, closure))
                result = func(self, *args, **kwargs)
        finally:
            thread.in_owner_step = False
            with torch.no_grad():
                owner_step.show_all()
        with torch.no_grad():
            owner_step.end()
        return result

    step.castor_separable = True  # also where it is wrapped or inherited
    return step


def _closure_with_all(owner_step, closure):
    """The script's closure sees every gradient and its own views; after it the optimizer sees what this rank owns."""

    def run():
        with torch.no_grad():
            owner_step.show_all()
        thread.in_owner_step = False
        try:
            loss = closure()
        finally:
            thread.in_owner_step = True
        owner_step.closure_over()
        owner_step.stepped = owner_step.owned()
        with torch.no_grad():
            owner_step.show_owned(owner_step.stepped)
        return loss

    return run


def _replace_closure(args, kwargs, closure):
    if kwargs.get("closure") is not None:
        return args, dict(kwargs, closure=closure)
    return (closure, *args[1:]), kwargs
