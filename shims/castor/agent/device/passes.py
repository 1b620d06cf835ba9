"""Passes without a step, as those of an evaluation or of generated words: each is a sequence of uses of its own, which is learnt as steps are, so that what
it reads comes ahead of its use. Models that no optimizer has come home at their first pass."""
import functools
import threading
import weakref

import torch

from .. import core, patching
from ..common import store, traced
from . import adoption

_thread = threading.local()  # .inside: of the call of a model
_seen = weakref.WeakSet()  # models that have had such a pass


def _counted(stock):
    def call(self, *args, **kwargs):
        if getattr(_thread, "inside", False):
            return stock(self, *args, **kwargs)
        ends = not torch.is_grad_enabled() and store.active()
        _thread.inside = True
        try:
            if ends and self not in _seen:
                _seen.add(self)
                adoption.look(self.parameters(), in_step=True)
            return stock(self, *args, **kwargs)
        finally:
            _thread.inside = False
            if ends:
                core.device_pass_end()

    return traced.unless_compiled(functools.wraps(stock)(call), stock, in_graphs=True)


def install():
    adoption.when_pressed.append(lambda: patching.replace("torch.nn.Module.__call__", _counted))
    adoption.pressed()  # there may be a budget
