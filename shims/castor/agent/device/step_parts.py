"""Optimizer steps of what lies on the host: in parts, in copies on the device, where the processors do not step it (optim/on_host.py).

The script's own optimizer runs once for each part, on copies of its parameters, gradients and states, while the next part comes and
the last one goes on streams of their own. The results have the bits of one whole step, since the optimizer treats each parameter on its
own (steps.py). It sees the script's own tensors: their memory is exchanged for that time. Other classes step over the link."""
import contextlib
import functools
import weakref

import torch
from torch.optim import optimizer as torch_optimizer

from .. import core, patching, replaced
from ..common import store, tensors
from ..common.parts import divide_by_device
from ..precision import masters
from . import adoption, homes, shortage, step_common

by_processors = None  # of optim/on_host.py: has the processors step what they can of the pairs; gives these, and what `run` returned
_states_seen = weakref.WeakKeyDictionary()  # optimizer: how many parameters had states after its last step in parts


def wanted(optimizer, divisible):
    """Whether a step is this file's business: there are masters; or it can go in parts, and some of the data is on the host, or there may be
    states that have no home yet."""
    if not masters.on_devices(optimizer):
        if not divisible or not homes.devices() or torch.cuda.is_current_stream_capturing():
            return False
        if _states_seen.get(optimizer) == len(optimizer.state) and not core.homes_on_host() and not adoption.waiting():
            return False
    parameters = store.parameters_of(optimizer)
    adoption.look(parameters, in_step=True)
    adoption.gradients_come_home(parameters)
    return any(p.is_cuda and p.grad is not None for p in parameters)


def step_or_run(optimizer, run, divisible):
    """The step here, if it is this file's business, else `run` alone."""
    return step(optimizer, run, divisible) if wanted(optimizer, divisible) else run()


def step(optimizer, run, divisible):
    """Calls `run`, a step without a closure of a class that treats each parameter on its own, once for each part; once for all of a device, if
    it is not divisible."""
    pairs = [(p, p.grad) for p in store.parameters_of(optimizer) if p.grad is not None]
    here = [(p, grad) for p, grad in pairs if p.is_cuda and grad.device == p.device and grad.layout is torch.strided]
    known = set(optimizer.state)
    result = None
    with _form_of_all(optimizer), step_common.hidden(pairs), _stepping():
        done = []
        if divisible:
            done, result = by_processors(optimizer, here, run)
        taken = {id(p) for p, _ in done}
        parts = _parts(optimizer, [(p, grad) for p, grad in here if id(p) not in taken], divisible)
        taken = {id(p) for p, _ in here}
        rest = [(p, grad) for p, grad in pairs if id(p) not in taken]
        if rest:
            with step_common.shown(rest), masters.shown(optimizer, rest):
                result = run()
        if parts:
            result = _run_all(parts, run)
    if len(optimizer.state) > len(known):  # the new ones come in the order of the parameters, wherever these are
        for p in store.parameters_of(optimizer):
            if p in optimizer.state and p not in known:
                optimizer.state[p] = optimizer.state.pop(p)
    _states_seen[optimizer] = len(optimizer.state)
    return result


def _run_all(parts, run):
    for index in {part.device.index for part in parts}:
        step_common.device(index).begin()
    try:
        parts[0].come()
        for number, part in enumerate(parts):
            gone = number + 2 - core.DEVICE_PARTS
            if gone >= 0 and number + 1 < len(parts):
                parts[gone].forget()
            if number + 1 < len(parts):
                parts[number + 1].come()
            with part.shown(), masters.shown(part.optimizer, part.pairs):
                result = run()
    finally:
        for index in {part.device.index for part in parts}:
            step_common.device(index).end()
        for part in parts:
            part.copies = []
    return result


def _parts(optimizer, pairs, divisible):
    """The pairs in their order, in parts of one device each. Where tensors of a step share memory, each part is all that is on a device, and
    is stepped there: it is the order of the optimizer's operations that counts then. So it is without homes."""
    if divisible and all(homes.available(p.device.index) for p, _ in pairs) and not step_common.share_memory(optimizer, pairs):
        return [_Part(optimizer, some) for some in divide_by_device(pairs, functools.partial(_copied_bytes, optimizer))]
    by_device = {}
    for p, grad in pairs:
        by_device.setdefault(p.device, []).append((p, grad))
    return [_Part(optimizer, some, copies=False) for some in by_device.values()]


def _copied_bytes(optimizer, pair):
    """Of the copies, and of the float gradients that masters take."""
    p, grad = pair
    return sum(t.nbytes for t in step_common.tensors_of(optimizer, p, grad)) + (0 if masters.of(p) is None else 4 * grad.numel())


class _Copy:
    """A copy, on the device, of a tensor whose home is on the host."""

    def __init__(self, tensor):
        self.tensor, self.home, self.version = tensor, tensor.data, tensor._version
        self.copy = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        self.copy.copy_(self.home, non_blocking=True)

    def show(self):
        self.tensor.data = self.copy

    def go(self, written):
        """The tensor has its own memory again, unless it was given another one meanwhile. Returns the bytes that are copied."""
        if self.tensor.data_ptr() == self.copy.data_ptr():
            self.tensor.data = self.home
        goes = written or self.tensor._version != self.version
        if goes:
            target(self.home).copy_(self.copy, non_blocking=True)
        return self.home.nbytes if goes else 0


class _Part:
    """Some parameters of one device."""

    def __init__(self, optimizer, pairs, copies=True):
        self.optimizer, self.pairs, self.copied = optimizer, pairs, copies
        self.device = step_common.device(pairs[0][0].device.index)
        self.copies, self.gone = [], None

    def come(self):
        """Enqueues the copies. Without memory for them, or where one parameter is too large, the part is stepped where it is, and so is
        what is no dense tensor: its elements may share memory."""
        some = [t for p, grad in self.pairs for t in step_common.tensors_of(self.optimizer, p, grad) if self.copied and tensors.is_dense(t)]
        needed = sum(t.nbytes for t in some)
        if not core.device_parts_hold(self.device.index, needed):
            if core.HOME_HOST in homes.tiers(some):
                shortage.step_of(self.device.index, self.pairs[0][0], needed)
            some = []
        with torch.no_grad(), torch.cuda.stream(self.device.comes):
            core.device_optional(1)
            try:
                for t, tier in zip(some, homes.tiers(some)):
                    if tier == core.HOME_HOST:
                        self.copies.append(_Copy(t))
            except torch.OutOfMemoryError:
                self.copies = []
            finally:
                core.device_optional(0)
            self.device.count(core.HOME_DEVICE, sum(copy.home.nbytes for copy in self.copies), self.device.comes)
            self.arrived = self.device.comes.record_event()

    @contextlib.contextmanager
    def shown(self):
        """The optimizer sees these parameters alone, and the copies of them."""
        self.device.steps.wait_event(self.arrived)
        with step_common.shown(self.pairs):
            for copy in self.copies:
                copy.show()
            try:
                yield
            finally:
                with torch.no_grad():
                    self._go()

    def _go(self):
        gradients = {id(grad) for _, grad in self.pairs}
        writes = step_common.writes_gradients(self.optimizer)
        self._states_come_home()  # in the order of the steps, from which their memory comes
        self.device.goes.wait_stream(self.device.steps)
        with torch.cuda.stream(self.device.goes):
            gone = sum(copy.go(writes or id(copy.tensor) not in gradients) for copy in self.copies)
            self.device.count(core.HOME_HOST, gone, self.device.goes)
            self.gone = self.device.goes.record_event()

    def forget(self):
        """Waits until its copies are at home, and frees them."""
        self.gone.synchronize()
        self.copies = []

    def _states_come_home(self):
        """States that this step has made get homes, with whatever else of the script's looks at their memory. Those that are shown as copies
        have one."""
        copies = {copy.copy.data_ptr() for copy in self.copies}
        _bring_home([t for p, grad in self.pairs for t in step_common.tensors_of(self.optimizer, p, grad)
                     if t is not p and t is not grad and t.data_ptr() not in copies])


def _bring_home(states):
    """Those that can have a home and have none get one."""
    able = [t for t in states if homes.can_have(t) and homes.available(t.device.index)]
    for t, tier in zip(able, homes.tiers(able)):
        if tier == core.HOME_NONE and homes.tiers([t])[0] == core.HOME_NONE:  # not with another one's storage meanwhile
            homes.move(t, homes.STATE)


@contextlib.contextmanager
def _form_of_all(optimizer):
    """A group of which parameters are on the host, or are of a class that PyTorch's foreach functions do not take, steps one tensor after
    another. That is chosen from all of a group's parameters, and has other bits on a device, so no part may choose for itself."""
    chosen = []
    for group in optimizer.param_groups:
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            some = [p for p in group["params"] if p.grad is not None]
            if not torch_optimizer._default_to_fused_or_foreach(some, group.get("differentiable", False))[1]:
                group["foreach"] = False
                chosen.append(group)
    try:
        yield
    finally:
        for group in chosen:
            if group["foreach"] is False:
                group["foreach"] = None


def target(home):
    """Where this thread's steps write what they change of a tensor on the host."""
    chosen = getattr(step_common.thread, "target", None)
    return chosen(home) if chosen else home


@contextlib.contextmanager
def targeted(target):
    """What this thread's steps change of a tensor on the host is written to target(it), a tensor with the same values."""
    step_common.thread.target = target
    try:
        yield
    finally:
        step_common.thread.target = None


@contextlib.contextmanager
def _stepping():
    step_common.thread.stepping = True
    try:
        yield
    finally:
        step_common.thread.stepping = False


def _made_by_compiled_steps(init_group):
    """States of a step that torch.compile has traced: of such a step this is called as it stands, and nothing else is seen."""

    @functools.wraps(init_group)
    def _init_group(self, *args, **kwargs):
        known = len(self.state)
        result = init_group(self, *args, **kwargs)
        if len(self.state) > known and store.active() and not getattr(step_common.thread, "stepping", False) and adoption.pressed():
            _bring_home([t for states in list(self.state.values())[known:] for t in states.values() if isinstance(t, torch.Tensor) and t.dim()])
        return result

    return _init_group


def install():
    for name in replaced.SEPARABLE:
        if "_init_group" in vars(getattr(torch.optim, name, object)):  # AdamW has Adam's
            patching.replace(f"torch.optim.{name}._init_group", _made_by_compiled_steps)
