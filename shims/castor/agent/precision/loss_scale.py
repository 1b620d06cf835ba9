"""CASTOR_PRECISION=fp16: the loss is scaled inside backward, so that small gradients do not vanish, and every gradient that a
script can see is without the scale.

The factor goes in at the root of a backward pass; the leaves' hooks take it out of gradients that are float by then (grad_dtype).
What comes to a leaf that is none of Castor's has a hook for that pass alone. Where a sum of all ranks' gradients is not
finite the optimizer's step is skipped, on every rank, and the scale becomes smaller."""
import functools
import os

import torch

from .. import core, patching
from ..common import graph, store
from ..process import events

INITIAL, LARGEST, GROWTH, BACKOFF, GROWTH_STEPS = 2.0**16, 2.0**24, 2.0, 0.5, 1000
LAST, EARLIER = "in the last backward", "before a step that was skipped"  # when the sum of a parameter's gradients overflowed
KEY = "castor_loss_scale"  # in an optimizer's state_dict(), beside what PyTorch has there

scale, good = INITIAL, 0  # good: steps since the scale changed, or a step was skipped
_active = False  # fp16 was chosen
_inverse = None  # of the running backward's scale
_hooked = set()  # ids of the parameters that have a hook for good


def active():
    return _active


def hook(p):
    """The parameter's gradients come without the scale."""
    if id(p) not in _hooked:
        _hooked.add(id(p))
        p.register_hook(_unscaled)


def _unscaled(grad):
    return None if _inverse is None else grad * _inverse


class Observer(events.Observer):
    def __init__(self):
        self.handles = []

    def backward_begun(self, outputs, create_graph):
        global _inverse
        if not _hooked or not store.active():
            return
        if create_graph:
            raise core.Error("castor: backward(create_graph=True) cannot be scaled: use CASTOR_PRECISION=bf16")
        _inverse = 1.0 / scale
        self.handles = [leaf.register_hook(_unscaled) for leaf in _leaves(outputs) if id(leaf) not in _hooked]

    def scaled(self, roots):
        return roots if _inverse is None else tuple(root if root is None else root * scale for root in roots)

    def backward_left(self):
        global _inverse
        _inverse = None
        for handle in self.handles:
            handle.remove()
        self.handles = []


def _leaves(outputs):
    for node in graph.nodes(outputs):
        variable = getattr(node, "variable", None)
        if variable is not None and type(node).__name__ == "AccumulateGrad":
            yield variable


def check(group, entries, used):
    """After a backward: whether the sums are finite, which every rank then knows. `used`: of each entry."""
    global scale, good
    mine = [e.sum_alias for e, some_rank_used in zip(entries, used) if e.mine and some_rank_used and e.sum_alias.numel()]
    with torch.no_grad():
        finite = not mine or bool(torch.isfinite(torch.stack(torch._foreach_norm(mine, float("inf")))).all())
    overflowed = any(flag for flag, in group.gather([float(not finite)], "the check of the gradients for infinities"))
    for e, some_rank_used in zip(entries, used):
        if some_rank_used:
            e.overflowed = LAST if overflowed else None
    if overflowed:
        scale, good = scale * BACKOFF, 0
        if group.rank == 0:
            core.log(2, f"a gradient overflowed: the loss scale is {scale:g}, and the step is skipped on every rank".encode())


def skips(optimizer):
    """Whether the step that is to begin has gradients that overflowed."""
    if not _active:
        return False
    pairs = [(p, store.entry_of(p)) for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    found = [(p, e) for p, e in pairs if e is not None and e.overflowed]
    # What was skipped before and had no gradient since counts as long as the script keeps the old one.
    if not any(e.overflowed is LAST or not torch.isfinite(p.grad).all() for p, e in found):
        return False
    for _, e in found:
        e.overflowed = EARLIER
    return True


def stepped(optimizer):
    """A step was made."""
    global scale, good
    entries = [store.entry_of(p) for group in optimizer.param_groups for p in group["params"]]
    if not any(e is not None for e in entries):
        return
    good += 1
    if good < GROWTH_STEPS:
        return
    good = 0
    if scale < LARGEST:
        scale *= GROWTH
        if next(e for e in entries if e is not None).group.rank == 0:
            core.log(3, f"no gradient overflowed in {GROWTH_STEPS} steps: the loss scale is {scale:g}".encode())


def _saving(stock):
    @functools.wraps(stock)
    def state_dict(self):
        return dict(stock(self), **{KEY: {"scale": scale, "good": good}})

    return state_dict


def _loading(stock):
    @functools.wraps(stock)
    def load_state_dict(self, state_dict):
        global scale, good
        stock(self, state_dict)
        saved = state_dict.get(KEY)
        if saved is not None:
            scale, good = saved["scale"], saved["good"]

    return load_state_dict


def _told_of(stock):
    @functools.wraps(stock)
    def __init__(self, *args, **kwargs):
        stock(self, *args, **kwargs)
        if self.is_enabled() and os.environ.get("RANK", "0") == "0" and int(core.option_text("CASTOR_RANK")) <= 0:
            core.log(1, b"the script's GradScaler multiplies the loss, and CASTOR_PRECISION=fp16 does so with a scale of its own: the first "
                        b"steps overflow until one of them is small enough; take the GradScaler out, or build it with enabled=False")

    return __init__


def install():
    """Returns what observes backward passes."""
    global _active
    if not hasattr(torch.Tensor, "grad_dtype"):
        raise core.Error(f"castor: CASTOR_PRECISION=fp16 needs Tensor.grad_dtype, which torch {torch.__version__} does not have: "
                         "use bf16")
    _active = True
    patching.replace("torch.amp.GradScaler.__init__", _told_of)
    patching.replace("torch.optim.Optimizer.state_dict", _saving)
    patching.replace("torch.optim.Optimizer.load_state_dict", _loading)
    return Observer()
