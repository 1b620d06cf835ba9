"""The gradients of each backward are added into the store's sums, and p.grad becomes a window on the sum."""
import collections
import ctypes
import functools
import weakref

import torch

from .. import core
from ..common import store, tensors
from ..precision import loss_scale, masters
from ..process import events
from . import accumulation

_NOT_ADDED = 2**64 - 1  # the ticket of a gradient on its way to the core


class Synchronizer:
    """Sums the gradients of a list of parameters over a group, once per backward for which `expecting` is set."""

    def __init__(self, group, parameters, delayed=False):
        self.group, self.delayed = group, delayed
        self.expecting = self.begun = False
        self.broken = None  # why no backward can be synchronized any more
        self.unsynced = False  # a backward without synchronization came after the last one with it
        self.scale = 1.0 / group.total  # the weight of this rank's gradients
        self.pending = collections.deque()  # (core.Gradient, entry, parameter, gradient, source): being added
        self.entries = masters.adopt(group, parameters)
        self.schedule = None  # the exchanges between nodes while a backward runs (nodes/across.py)
        self.let_go_before = False
        if group.across is not None:
            group.across.synchronizers.add(self)
        self.hooks = {}  # entry: the handle of its hook
        accumulation.watch(self)
        for p, e in zip(parameters, self.entries):
            self.hook(p, e)

    def hook(self, p, entry):
        entry.synchronizer = self
        self.hooks[entry] = p.register_post_accumulate_grad_hook(functools.partial(self._ready, entry))

    def moved(self, entry, p):
        """A gradient came of a parameter that the script has moved to a device since it was registered."""
        raise core.Error(f"castor: a parameter of shape {tuple(p.shape)} was moved to {p.device} after its gradients were to be summed on the "
                         "CPU: move the model before it is wrapped and its optimizer is built")

    def remove_hooks(self):
        for hook in self.hooks.values():
            hook.remove()

    def _ready(self, entry, p):
        if not store.active():
            return
        if p.device.type != "cpu":
            self.moved(entry, p)
            return
        entry.used, entry.synced = True, False
        if not self.expecting:
            self.unsynced = True
            return
        if not self.begun:
            if self.broken:
                self.refuse_broken()
            self.begun = True
            events.at_end(self._finish, self._raised)
            if self.group.across is not None:
                self.group.across.begin(self)
        if self.delayed:
            return
        if entry.fired:
            self._refuse_second()
        self._reap()  # earlier gradients only: the script's own hooks, which run after this one, still look at p.grad
        self._submit([(entry, p, p.grad)])
        entry.fired = True  # not before: a gradient that an exception stopped is not waited for
        if self.group.across is not None:
            self.group.across.go_on(self)

    def _refuse_second(self):
        raise RuntimeError(
            "Expected to mark a variable ready only once: a parameter got two gradients in one backward "
            "(reentrant checkpointing of shared weights?). Pass static_graph=True to DistributedDataParallel."
        )

    def _submit(self, made):
        """`made`: (entry, parameter, gradient) each. Adds the gradients to the sums. This rank looks at the last sums no more."""
        added = (core.Gradient * len(made))()
        for (entry, p, grad), gradient in zip(made, added):
            self._describe(entry, gradient)
            entry.carrying, entry.carried = entry.carried, False
            source = self._source_of(entry, p, grad)
            if source is not None:
                gradient.source, gradient.ticket = source.data_ptr(), _NOT_ADDED
                self.pending.append((gradient, entry, p, grad, source))  # before the call, which may fail halfway
            goes_on = entry.carrying and not ((entry.whole or entry.single_sum) and not entry.goes_on_here)
            gradient.flags |= core.GRADIENT_USED * entry.used | core.GRADIENT_CARRY * goes_on
            entry.whole = False
            if not accumulation.at_boundary([p]):
                gradient.flags |= core.GRADIENT_KEEP
        core.gradients_add(added, len(added), self.scale)

    @staticmethod
    def _describe(entry, gradient):
        """Fills in what the core needs to release the last sum."""
        gradient.tensor = entry.handle
        if entry.carried:
            gradient.flags = core.GRADIENT_CARRIED
            gradient.window = entry.window if entry.hidden is not None and entry.shows_window(entry.hidden) else None

    def _source_of(self, entry, p, grad):
        """The gradient, in the sum's type and strides."""
        if grad is None:
            return None
        if grad.layout is not torch.strided:
            raise core.Error("castor: a gradient is sparse: make it dense (Embedding(sparse=False)), or run this script on one rank")
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
        done = core.gradients_done(self.group.handle)
        while self.pending and self.pending[0][0].ticket <= done:
            self._added()

    def _added(self):
        """The oldest gradient in the queue is in the sum: its memory can be freed."""
        _, entry, p, grad, source = self.pending.popleft()
        del source
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
        self.broken = self.broken or (f"a backward pass ended with {type(error).__name__} before its gradients were summed, and no other one "
                       "can follow: let the exception end the script")
        self.begun = self.expecting = False
        for entry in self.entries:
            entry.fired = entry.used = False

    def sum_accumulated(self):
        """Sums what backward passes without synchronization have left in p.grad. On every rank together."""
        if self.broken:
            self.refuse_broken()
        self._finish()

    def _finish(self):
        try:
            self._sum()
        except BaseException as error:
            self._break_off(error)
            raise

    def _sum(self):
        self.unsynced = False
        entries = self._participants()
        late = [(e, e.parameter()) for e in entries if not e.fired]
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
        while self.pending:
            self._added()
        with torch.no_grad():
            self._show(entries, used)
        self.begun = self.expecting = False

    def _show(self, entries, used):
        """p.grad becomes the sum, for each parameter that some rank used."""
        copied, refreshed, taken = [], [], []
        for entry, some_rank_used in zip(entries, used):
            entry.fired = entry.used = False
            entry.synced = True
            p = entry.parameter()
            if entry.hidden is not None:
                self._show_carried(entry)
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
            entry.carrying = False
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

    # ---- accumulation: a sum that goes on through several backward passes

    @staticmethod
    def _show_carried(entry):
        p = entry.parameter()
        if p is not None:
            p.grad = entry.hidden
        entry.hidden = None

    def carry(self, entry, p, already, changed):
        """A micro-step is over: the next backward adds to the sum that p.grad shows. False: p.grad holds values that no sum has
        (no_sync), or zeros. `already`: earlier micro-steps are in p.grad. `changed`: p.grad has changed (store.changed)."""
        entry.carried = False
        if self.unsynced or not entry.synced:
            return False
        if changed:
            if already or p.grad.any():
                accumulation.refuse_change(p)
            return False
        entry.carried = True
        return True

    def hide_carried(self):
        """A backward begins: p.grad is hidden, so that autograd gives the new gradients alone, which are added to the sums."""
        carried = [(e, e.parameter()) for e in self.entries if e.carried]
        carried = [(e, p) for e, p in carried if p is not None]
        if self.unsynced:
            for entry, _ in carried:
                entry.carried = False  # p.grad holds the sum and gradients without synchronization
            return
        changed = store.changed([(e, p) for e, p in carried if p.grad is not None])
        for entry, p in carried:
            if entry in changed:
                if p.grad is not entry.shown_grad() or p.grad.any():
                    accumulation.refuse_change(p)
        self._show([e for e, _ in carried if e in changed], [True] * len(changed))  # clearing by hand acts at the step only
        for entry, p in carried:
            if self.expecting:
                entry.hidden, p.grad = p.grad, None
            elif p.grad is None:
                accumulation.refuse_change(p)

    def show_carried(self):
        """The backward is over: gradients that it did not reach show what they showed before."""
        for entry in self.entries:
            if entry.hidden is not None:
                self._show_carried(entry)
