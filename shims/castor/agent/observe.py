"""Plugin `none`: steps and backward passes are counted, nothing is changed."""
import functools
import threading

import torch

from . import core, patching
from .common import store
from .optim import figures
from .process import events


class _Thread(threading.local):
    steps = False  # an outermost step runs


_thread = _Thread()


def _counted(wrapper):
    """Wraps the step that Optimizer.profile_hook_step made for a class."""

    @functools.wraps(wrapper)
    def step(*args, **kwargs):
        # torch.compile(optimizer.step): the compiled step is PyTorch's own.
        if torch.compiler.is_compiling() or _thread.steps or not store.active():
            return wrapper(*args, **kwargs)
        begin, _thread.steps = core.phase_begin(core.PHASE_OPTIMIZER), True
        try:
            result = wrapper(*args, **kwargs)
        finally:
            _thread.steps = False
            core.phase_end(0)
        figures.stepped(args[0], begin, core.MODE_PLAIN)
        return result

    return step


def _count(profile_hook_step):
    @functools.wraps(profile_hook_step)
    def wrap(func):
        return _counted(profile_hook_step(func))

    return wrap


def install():
    events.install()
    patching.replace("torch.optim.Optimizer.profile_hook_step", _count)
