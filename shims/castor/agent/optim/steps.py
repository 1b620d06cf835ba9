"""Optimizer steps: the mode of each, and the work around it.

owner       a separable class, known to treat each parameter on its own (or named in CASTOR_SEPARABLE): inside `step` a rank
            steps only what it owns, in the store's memory, and publishes it (owner.py)
replicated  any other class: every rank steps everything in its views; then equal pages are shared again
local       gradients that were not synchronized: every rank steps for itself, and is replicated from then on
"""
import atexit
import functools

import torch

from .. import core, patching, replaced
from ..backward import accumulation, reducer
from ..common import separable, store, traced
from ..device import adoption
from ..precision import loss_scale, masters
from ..process import events, launchers, strays
from . import figures, kernels, owner, states


def _say_alone(optimizer):
    """Says that nothing is shared: to a script of one process at once, else at the end, since it may wrap its model later."""
    parameters = store.parameters_of(optimizer)
    if any(map(adoption.serves, parameters)) or reducer.said_why:
        return
    device = next((p.device for p in parameters if p.device.type != "cpu"), None)
    if any(hasattr(p, name) for p in parameters for name in ("placements", "_is_flat_param", "_fsdp_flattened")):
        why = b"PyTorch shares this model out itself (FSDP, tensor parallelism), which Castor leaves as it is"
    elif device is not None:
        why = f"model data on {device.type} devices stays where the script has it, which is Castor's business in scripts of one process only".encode()
    elif torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        why = b"nothing is shared: the model is in no DistributedDataParallel"
    else:
        core.passthrough(launchers.why_nothing_shared().encode())
        return

    def tell():
        if not store.groups() and not reducer.said_why:
            core.passthrough(why)

    atexit.register(tell)


def _outermost(wrapper):
    """Wraps the step that Optimizer.profile_hook_step made for a class: counts steps, and ends replicated ones."""

    @functools.wraps(wrapper)
    def step(*args, **kwargs):
        self = args[0]
        if strays.is_stray():
            strays.refuse_training()
        if owner.thread.running is not None or not store.active():
            return wrapper(*args, **kwargs)
        closure = owner.closure_of(args[1:], kwargs)
        masters.check_optimizer(self, closure)
        if accumulation.active() and accumulation.skips_step(self, closure, _is_separable(type(self))):
            return _micro_step(self, closure)
        if loss_scale.skips(self):
            return _skipped_step(self)
        running = owner.thread.running = owner.Running(self)
        begin = core.phase_begin(core.PHASE_OPTIMIZER)
        try:
            if events.is_running():
                _step_in_backward(self)
            try:
                if _job is not None and closure is None:
                    running.say(_job)
                    if not getattr(type(self).step, "castor_separable", False):
                        running.compare_alone()
                result = wrapper(*args, **kwargs)
            finally:
                owner.thread.running = None
            if loss_scale.active():
                loss_scale.stepped(self)
            if accumulation.active():
                accumulation.step_over(self)
            if store.groups() and (not _is_separable(type(self)) or states.of(self).local):
                _end_replicated(self, running)
            if _job is not None:
                _job.step_ended()
            adoption.step_ended()
            if figures.is_first_step() and not store.groups():
                _say_alone(self)
            figures.stepped(self, begin, running.mode)
        finally:
            core.phase_end(0)
        return result

    return traced.unless_compiled(torch._disable_dynamo(step), wrapper)


def _micro_step(optimizer, closure):
    """A step that CASTOR_ACCUMULATE leaves out."""
    if events.is_running():
        raise core.Error("castor: an optimizer steps inside a backward pass: use CASTOR_ACCUMULATE=1")
    with torch.enable_grad():
        result = None if closure is None else closure()
    accumulation.micro_step_over(optimizer)
    if _job is not None:
        _job.step_ended()
    return result


def _skipped_step(optimizer):
    """A step whose gradients overflowed, on some rank (CASTOR_PRECISION=fp16)."""
    if accumulation.active():
        accumulation.step_over(optimizer)
    if _job is not None:
        _job.step_ended()


def _is_separable(cls):
    return cls in _separable


def _end_replicated(optimizer, running):
    # Parameters without a gradient were not stepped: a rank's own edits of them stay its own.
    pairs = [(p, e) for p, e in owner.pairs_of(optimizer) if e.shared and p.grad is not None]
    away = store.look([e for _, e in pairs])
    for _, e in (pair for pair, flag in zip(pairs, away or ()) if flag):
        core.tensor_unbind(e.handle)  # the script may still hold its former block
    if not pairs or running.mode == core.MODE_LOCAL or owner.is_local(pairs):
        return
    if running.mode == core.MODE_PLAIN:
        running.mode = core.MODE_REPLICATED
    group = pairs[0][1].group
    handles = core.pointers([e.handle for _, e in pairs])
    if group.single:
        group.across.meet("the end of a replicated optimizer step")  # no rank reads the old parameters any more
    core.publish_deduplicate(group.handle, handles, len(pairs), b"the end of a replicated optimizer step")
    if group.single:
        group.across.changed([e for _, e in pairs], sums=False)
        core.publish_deduplicate_elsewhere(group.handle, handles, len(pairs))


def _step_in_backward(optimizer):
    pairs = owner.pairs_of(optimizer)
    if any(masters.of(p) is not None for p in store.parameters_of(optimizer)):
        masters.refuse("an optimizer steps inside a backward pass")
    if _job is not None:
        _job.step_inside_backward(pairs)
    elif pairs:
        core.passthrough(b"an optimizer steps inside a backward pass: its parameters leave the store")
        store.release([p for p, _ in pairs])


_separable = set()
_job = None


def install(single_job):
    """`single_job`: the ranks of a single-process script, None for other scripts."""
    global _job
    _job = single_job
    kernels.install(core.options.optimizer)
    for name in replaced.SEPARABLE:
        cls = getattr(torch.optim, name, None)
        if cls is None:
            continue
        if "step" in cls.__dict__:  # AdamW has Adam's
            patching.replace(f"torch.optim.{name}.step", functools.partial(owner.by_owners, divisible=True))
        _separable.add(cls)
    separable.begin(_take_up)
    patching.replace("torch.optim.Optimizer.profile_hook_step", _wrap_all_steps)
    patching.replace("torch.optim.Optimizer._patch_step_function", _wrap_named_steps)


def _take_up(cls):
    """A class that has declared itself separable. It may have the step of another one that is."""
    if not getattr(cls.step, "castor_separable", False):
        patching.put(cls, "step", owner.by_owners(cls.step, divisible=True))
    _separable.add(cls)


def _wrap_all_steps(profile_hook_step):
    @functools.wraps(profile_hook_step)
    def wrap(func):
        return _outermost(profile_hook_step(func))

    return wrap


def _wrap_named_steps(patch):
    """CASTOR_SEPARABLE: the classes that the script names."""
    named = {n.strip() for n in core.options.separable.split(",") if n.strip()}

    @functools.wraps(patch)
    def patch_step_function(self):
        cls = type(self)
        if cls.__name__ in named and cls not in _separable:
            _separable.add(cls)
            patching.put(cls, "step", owner.by_owners(cls.step))
        patch(self)

    return patch_step_function
