"""CASTOR_PRECISION=fp16: the loss is scaled inside backward, so that small gradients do not vanish. Every gradient that a script
can see is without the scale.

The factor is applied at the root of a backward pass. Hooks of the leaves remove it from the gradients, which are float by then
(grad_dtype). A leaf that is none of Castor's gets a hook for that pass alone. If a sum of all ranks' gradients is not finite,
every rank skips the optimizer's step, and the scale becomes smaller."""
import functools
import os

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from .. import core, patching
from ..common import graph, store, tensors
from ..process import events

LAST, EARLIER = "in the last backward", "before a step that was skipped"  # when the sum of a parameter's gradients overflowed
KEY = "castor_loss_scale"  # in an optimizer's state_dict(), beside what PyTorch has there

_state = None  # core.LossScale, where fp16 was chosen
_inverse = None  # of the running backward's scale
_hooked = WeakTensorKeyDictionary()  # the parameters that have a hook for good, with an _OnDevice
_reached = []  # those on devices that the running backward gave a gradient
has_grad = lambda p: p.grad is not None  # noqa: E731 - sums.py has another one


class _OnDevice:
    """What a parameter in the store has in its entry. group: of the ranks over which its gradients are summed; their sums count then
    (device_ranks/buckets.py)."""

    overflowed, group = None, None


def active():
    return _state is not None


def in_backward():
    """Whether a pass runs whose gradients are still to be checked, in any thread."""
    return _inverse is not None


def hook(p):
    """From here on the parameter's gradients are without the scale."""
    if p not in _hooked:
        _hooked[p] = _OnDevice()
        p.register_hook(_unscaled)
        if p.is_cuda:
            p.register_post_accumulate_grad_hook(_reach)


def _reach(p):
    _reached.append(p)


def sum_over(group, parameters):
    for p in parameters:
        if p in _hooked:
            _hooked[p].group = group


def _unscaled(grad):
    return None if grad is None or _inverse is None else grad * _inverse  # None: a function of the script's gives no gradient


class Observer(events.Observer):
    def __init__(self):
        self.handles = []

    def backward_begun(self, outputs, create_graph):
        global _inverse
        if _state is None or not _hooked or not store.active():
            return
        if create_graph:
            raise core.Error("castor: backward(create_graph=True) cannot be scaled: use CASTOR_PRECISION=bf16")
        _inverse = 1.0 / _state.scale
        self.handles = [leaf.register_hook(_unscaled) for leaf in _leaves(outputs) if leaf not in _hooked]

    def scaled(self, roots):
        return roots if _inverse is None else tuple(root if root is None else root * _state.scale for root in roots)

    def backward_left(self):
        global _inverse
        _inverse = None
        for handle in self.handles:
            handle.remove()
        self.handles = []
        if _reached and store.active():
            _check_on_devices()


def _leaves(outputs):
    for node in graph.nodes(outputs):
        variable = getattr(node, "variable", None)
        if variable is not None and type(node).__name__ == "AccumulateGrad":
            yield variable


def check(group, entries, used):
    """After a backward: checks whether the sums are finite; every rank gets the same result. `used`: of each entry."""
    mine = [e.sum_alias for e, some_rank_used in zip(entries, used) if e.mine and some_rank_used and e.sum_alias.numel()]
    with torch.no_grad():
        own = bool(mine) and bool(have_overflowed(mine))
    overflowed = any(flag for flag, in group.gather([float(own)], "the check of the gradients for infinities"))
    for e, some_rank_used in zip(entries, used):
        if some_rank_used:
            e.overflowed = LAST if overflowed else None
    if overflowed:
        core.loss_scale_overflowed(_state, group.rank == 0)


@torch.no_grad()
def _check_on_devices():
    """The same for gradients on devices, with one wait for each device."""
    reached = [p for p in dict.fromkeys(_reached) if _hooked[p].group is None]
    _reached.clear()
    by_device = {}
    for grad in (p.grad for p in reached if p.grad is not None and p.grad.numel()):
        by_device.setdefault(grad.device, []).append(grad if grad.layout is torch.strided else grad._values())
    flags = [have_overflowed(grads) for grads in by_device.values()]
    found(reached, any(map(bool, flags)))


def have_overflowed(grads):
    """Of one device: a flag there."""
    return tensors.not_finite(torch.stack(torch._foreach_norm(grads, float("inf"))))


def found(parameters, overflowed, says=True):
    """Whether the gradients of these parameters on devices are not finite."""
    for p in parameters:
        if p in _hooked:
            _hooked[p].overflowed = LAST if overflowed else None
    if overflowed:
        core.loss_scale_overflowed(_state, says)


def _record_of(p):
    return _hooked.get(p) if p.is_cuda else store.entry_of(p)


def skips(optimizer):
    """Whether the step that is to begin has gradients that overflowed."""
    if _state is None:
        return False
    pairs = [(p, e) for p, e in ((p, _record_of(p)) for p in store.parameters_of(optimizer)) if e is not None and e.overflowed and has_grad(p)]
    # A parameter that was skipped and had no gradient since counts as long as the script keeps the old one.
    if not any(e.overflowed is LAST or tensors.not_finite(p.grad) for p, e in pairs):
        return False
    for _, e in pairs:
        e.overflowed = EARLIER
    return True


def stepped(optimizer):
    """A step was made."""
    records = map(_record_of, store.parameters_of(optimizer))
    first = next((e for e in records if e is not None), None)
    if first is not None:
        core.loss_scale_stepped(_state, first.group is None or first.group.rank == 0)


def _saving(stock):
    @functools.wraps(stock)
    def state_dict(self):
        if _state is None:
            return stock(self)
        return dict(stock(self), **{KEY: {"scale": _state.scale, "good": _state.good, "overflows": _state.overflows}})

    return state_dict


def _loading(stock):
    @functools.wraps(stock)
    def load_state_dict(self, state_dict):
        stock(self, state_dict)
        saved = state_dict.get(KEY)
        if saved is not None and _state is not None:
            _state.scale, _state.good, _state.overflows = saved["scale"], saved["good"], saved.get("overflows", 0)

    return load_state_dict


def _told_of(stock):
    @functools.wraps(stock)
    def __init__(self, *args, **kwargs):
        stock(self, *args, **kwargs)
        if _state is not None and self.is_enabled() and os.environ.get("RANK", "0") == "0" and core.options.rank <= 0:
            core.log(1, b"the script's GradScaler multiplies the loss, and CASTOR_PRECISION=fp16 does so with a scale of its own: the first "
                        b"steps overflow until one of them is small enough; take the GradScaler out, or build it with enabled=False")

    return __init__


def end():
    """No model is scaled any more."""
    global _state
    _state = None


def begin(**settings):
    """Models are scaled from here on. `settings`: fields of castor_loss_scale that are not the default."""
    global _state
    if not hasattr(torch.Tensor, "grad_dtype"):
        raise core.Error(f"castor: CASTOR_PRECISION=fp16 needs Tensor.grad_dtype, which torch {torch.__version__} does not have: "
                         "use bf16")
    _state = core.LossScale()
    core.loss_scale_begin(_state)
    for name, value in settings.items():
        setattr(_state, name, value)


def install():
    """Returns the observer of backward passes."""
    patching.replace("torch.amp.GradScaler.__init__", _told_of)
    patching.replace("torch.optim.Optimizer.state_dict", _saving)
    patching.replace("torch.optim.Optimizer.load_state_dict", _loading)
    return Observer()
