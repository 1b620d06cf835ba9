"""The common part of processes of scripts without process groups: a rank of `--nproc` (job.py), or one alone (alone.py)."""
import functools
import time
import weakref

import torch

from .. import core, patching
from ..backward import gradients
from ..common import store, tensors
from ..device_ranks import entries
from ..precision import masters
from ..process import events
from . import on_devices

TOLD_SECONDS = 2.0  # how long a rank waits to learn what ended another one's backward


def is_registered(p):
    return store.entry_of(p) is not None or entries.entry_of(p) is not None


def is_fresh(p):
    """Whether the parameter is not registered as it is."""
    return entries.entry_of(p) is None if p.is_cuda else store.is_fresh(p)


class Process(events.Observer):
    """One rank of this run. By default an event does nothing."""

    share = 1.0  # the weight of this rank's loss and gradients: by the size of its part for a mean, 1 for a sum
    sums_late = False  # ranks wait for each other within a backward pass: sums, which come in one order on all of them, wait for its end

    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        self.nodes = None  # nodes.whole.Whole, if there are several
        self.synchronizer = None  # made with the first parameters
        self.said = set()
        self.boosted = None  # the optimizers that a plugin object trains here; None: there is no such object
        self.waiting = weakref.WeakSet()  # optimizers with parameters that have no data yet
        self.forward_hook = None  # while there are any

    @property
    def group(self):
        """All ranks of the job."""
        return self.nodes or self.local_group

    @property
    def local_group(self):
        """The store's, of those on this node."""
        return store.group("nproc", self.rank, self.world) if self.nodes is None else self.nodes.local

    @property
    def distributed(self):
        """The script has a process group of its own after all: then it is not a single-process script."""
        return torch.distributed.is_available() and torch.distributed.is_initialized() and self.boosted is None

    def say(self, text, level=2):
        if text not in self.said and self.rank == 0:
            core.log(level, text.encode())
        self.said.add(text)

    def adopt(self, optimizer):
        """Registers those parameters of an optimizer, new or extended, that are not registered yet."""
        raise NotImplementedError

    def with_data(self, optimizer):
        """Its parameters, but for those without data, which are looked at again before a module uses them."""
        parameters = store.parameters_of(optimizer)
        found = [p for p in parameters if not tensors.lacks_data(p)]
        if len(found) == len(parameters):
            self.waiting.discard(optimizer)
            return found
        self.waiting.add(optimizer)
        if self.forward_hook is None:
            self.forward_hook = torch.nn.modules.module.register_module_forward_pre_hook(lambda *_: self.adopt_waiting())
        return found if masters.dtype is None else []  # a model becomes 16 bits as a whole

    def initialized(self, module):
        """A lazy module has its parameters, within its first forward."""
        if masters.dtype is not None and torch.is_grad_enabled():
            own = {id(p) for p in module.parameters(recurse=False)}
            if any(id(p) in own for optimizer in self.waiting for p in store.parameters_of(optimizer)):
                masters.refuse("a lazy module gets its parameters within a forward pass, which has begun in float: call the model once under "
                               "torch.no_grad() before it is trained")
        self.adopt_waiting()

    def adopt_waiting(self):
        """Before a forward pass, when a lazy module has got its parameters, and before a backward pass, which may reach others."""
        if masters.dtype is not None and not torch.is_grad_enabled():  # a first run for their shapes: its end is not known
            return
        for optimizer in list(self.waiting):
            self.adopt(optimizer)
        if self.forward_hook is not None and not self.waiting:
            self.forward_hook.remove()
            self.forward_hook = None

    def boost(self, optimizer=None):
        """A plugin object trains here: from now on only optimizers that are boosted are adopted, and a process group of this one rank changes
        nothing."""
        if self.boosted is None:
            self.boosted = weakref.WeakSet()
        if optimizer is not None:
            self.boosted.add(optimizer)
            self.adopt(optimizer)

    def takes(self, optimizer):
        return self.boosted is None or optimizer in self.boosted

    def keeps_sparse(self, p):
        """A registered parameter has a sparse gradient. True: it shall leave the store."""
        return False

    def moved(self, p):
        """A registered parameter has a gradient on a device."""
        raise core.Error(f"castor: a parameter of shape {tuple(p.shape)} cannot be shared: it was moved to {p.device}. Run this script on one rank")

    def backward_raised(self, error):
        if self.synchronizer is not None and self.synchronizer.expecting and store.active():
            self.synchronizer.raised(error)

    def said_before_step(self, optimizer):
        return []

    def step_inside_backward(self, pairs):
        """Of an optimizer with these (parameter, entry)."""

    def step_ended(self):
        pass


class Synchronizer(gradients.Synchronizer):
    """Sums the gradients of all optimizers' parameters that any rank's backward reached."""

    def __init__(self, job):
        super().__init__(job.local_group, [], job.sums_late)
        self.job = job
        self.devices = None  # on_devices.Sums, once there are any
        self.has_raised = False
        self.early = set()  # the entries whose gradients were taken before the hook ran that does it

    def add(self, parameters):
        entries = masters.adopt(self.group, parameters)
        for p, e in zip(parameters, entries):
            if self not in e.synchronizers:  # else it was registered anew
                self.hook(p, e)
                self.entries.append(e)

    def add_on_device(self, parameters):
        if self.devices is None:
            self.devices = on_devices.Sums(self.job)
        self.devices.add(parameters)

    def parameters(self):
        """Weak references to all that are registered."""
        return [e.parameter for e in self.entries] + ([] if self.devices is None else self.devices.parameters())

    @property
    def count(self):
        return len(self.entries) + (0 if self.devices is None else self.devices.count)

    def expect(self):
        super().expect()
        self.early.clear()
        if self.devices is not None:
            self.devices.expect()
            if not self.begun:
                self._begin()  # at whose end the ranks say what they have reached

    def _ready(self, entry, p):
        if entry in self.early:
            self.early.remove(entry)
            return
        if p.grad is not None and p.grad.layout is not torch.strided and self.job.keeps_sparse(p):
            store.release([p])
            self.hooks.pop(entry).remove()
            self.entries.remove(entry)
            return
        super()._ready(entry, p)
        if self.delayed and self.expecting:
            self.ready.add(entry)

    def settle(self, pairs):
        """Within a backward pass: the gradients that came of these (parameter, entry) are sums now, which an optimizer may step. In one
        process; hooks of the script may run before ours or after it."""
        for p, entry in pairs:
            if p.grad is not None and entry not in self.ready:
                self._ready(entry, p)
                self.early.add(entry)
        entries = [entry for _, entry in pairs if entry.added]
        used = self._complete(entries)
        for place in reversed(range(len(self.pending))):  # some of the others may not be in their sums yet
            if self.pending[place][1] in entries:
                self._added(place)
        with torch.no_grad():
            self._show(entries, used)

    def moved(self, entry, p):
        self.job.moved(p)

    def let_go_of_moved(self):
        """Parameters that the script has moved to a device are the store's no longer. Nothing of that is left, should they come back. Returns
        them."""
        moved = [(p, e) for p, e in ((e.parameter(), e) for e in self.entries) if p is not None and p.device.type != "cpu"]
        if moved:
            store.let_go(moved)
            gone = {e for _, e in moved}
            for entry in gone:
                self.hooks.pop(entry).remove()
            self.entries = [e for e in self.entries if e not in gone]
        return [p for p, _ in moved]

    def renew(self):
        """Registers parameters that have another type now anew."""
        changed = [p for p, e in ((e.parameter(), e) for e in self.entries) if p is not None and p.dtype is not e.dtype]
        if changed:
            self.add(changed)

    def _source_of(self, entry, p, grad):
        if grad is not None and not self.job.share:
            grad.detach().nan_to_num_(0.0, 0.0, 0.0)  # the loss of a part without targets is 0 / 0, with weight 0
        return super()._source_of(entry, p, grad)

    def refuse_second(self):
        raise core.Error("castor: a parameter got two gradients in one backward (reentrant checkpointing of shared weights?): use "
                         "checkpoint(..., use_reentrant=False), or run this script on one rank")

    def _raised(self, error):
        """Does nothing: backward_raised() calls raised(), whether gradients were handed over or not."""

    def raised(self, error):
        """Gradients that were made before the exception stay, as in plain PyTorch. The ranks sum them if all ranks raised."""
        if isinstance(error, core.GroupError) or self.group.total > 1 and not isinstance(error, Exception):
            self._break_off(error)
            return
        self.has_raised = True
        try:
            self.sum_accumulated()
        except core.GroupError:
            pass  # the other ranks get it; this one has its own
        finally:
            self.has_raised = False

    def _participants(self):
        """The entries that some rank's backward reached: the same list on every rank."""
        of_devices = [] if self.devices is None else self.devices.flags()
        flags = [e.added or e in self.ready for e in self.entries] + of_devices + [self.has_raised, not self.has_raised]
        reached = self.job.group.union(flags, "the end of backward")
        if reached is not None and all(reached[-2:]):
            self._refuse_raised()
        if reached is None:
            raise core.GroupError("castor: the ranks have registered different numbers of parameters: the script must "
                             "build the same optimizers on every rank")
        if of_devices:
            self.devices.hear(reached[len(self.entries):-2])
        return [e for e, by_some in zip(self.entries, reached) if by_some]

    def _complete(self, entries):
        used = super()._complete(entries) if entries or self.devices is None else ()
        if self.devices is not None:
            self.devices.finish()
        return used

    def _break_off(self, error):
        super()._break_off(error)
        if self.devices is not None:
            self.devices.break_off(error)

    def _refuse_raised(self):
        """Backward raised on some ranks only. Such a rank has its own exception, which tells more if it ends the script."""
        self.broken = "a backward pass raised an exception on some of the ranks only: what raises must do so on all of them"
        until = time.monotonic() + TOLD_SECONDS
        while not self.has_raised and self.group.failure() is None and time.monotonic() < until:
            time.sleep(0.01)
        if self.has_raised:
            raise core.GroupError(f"castor: {self.broken}")
        failure = self.group.failure()
        if failure is not None:
            raise core.GroupError(f"castor: {failure[1]}")
        self.refuse_broken()


def adopt_at_build(job):
    def wrap_init(init):
        @functools.wraps(init)
        def optimizer_init(self, *args, **kwargs):
            init(self, *args, **kwargs)
            self._castor_built = True
            if job.takes(self):
                job.adopt(self)

        return optimizer_init

    def wrap_add(add_param_group):
        @functools.wraps(add_param_group)
        def optimizer_add_param_group(self, *args, **kwargs):
            add_param_group(self, *args, **kwargs)
            if getattr(self, "_castor_built", False) and job.takes(self):
                job.adopt(self)

        return optimizer_add_param_group

    def wrap_infer(infer_parameters):
        @functools.wraps(infer_parameters)
        def _infer_parameters(self, module, args, kwargs=None):
            result = infer_parameters(self, module, args, kwargs)
            job.initialized(module)
            return result

        return _infer_parameters

    patching.replace("torch.nn.modules.lazy.LazyModuleMixin._infer_parameters", wrap_infer)
    patching.replace("torch.optim.Optimizer.__init__", wrap_init)
    patching.replace("torch.optim.Optimizer.add_param_group", wrap_add)
