"""Backward passes, counted at their outermost depth.

Every call of the autograd engine goes through torch.autograd.graph._engine_run_backward; reentrant checkpointing nests
it. The end of a backward is the return of the outermost call of the thread."""
import functools
import threading

import torch
import torch.autograd.graph

from . import core

_thread = threading.local()


def depth():
    return getattr(_thread, "depth", 0)


def at_end(callback):
    """Runs `callback` when the running outermost backward has returned without an error."""
    if depth():
        _thread.pending.append(callback)
    else:  # an engine call that did not come through Python
        torch.autograd.Variable._execution_engine.queue_callback(callback)


def _wrap(run, begun, ended, taken):
    @functools.wraps(run)
    def engine_run_backward(t_outputs, *args, **kwargs):
        if depth():
            _thread.depth += 1
            try:
                return run(t_outputs, *args, **kwargs)
            finally:
                _thread.depth -= 1
        begin = core.now_ns()
        _thread.depth, _thread.pending = 1, []
        accumulates = kwargs.get("accumulate_grad", False)
        if accumulates:
            begun(t_outputs, bool(args[2]) if len(args) > 2 else kwargs.get("create_graph", False))
        elif len(args) > 3:
            taken(args[3], bool(args[2]))
        try:
            result = run(t_outputs, *args, **kwargs)
        finally:
            _thread.depth = 0
            pending, _thread.pending = _thread.pending, []
        for callback in pending:
            callback()
        if accumulates:
            ended(t_outputs, bool(pending))
            core.event_backward(begin, core.now_ns(), bool(pending))
        return result

    return engine_run_backward


def install(begun=lambda *_: None, ended=lambda *_: None, taken=lambda *_: None):
    """`begun(outputs, create_graph)` and `ended(outputs, synchronized)` are called around each outermost backward that
    accumulates gradients into leaves, `taken(inputs, create_graph)` before one that returns them (autograd.grad)."""
    wrapped = _wrap(torch.autograd.graph._engine_run_backward, begun, ended, taken)
    torch.autograd.graph._engine_run_backward = wrapped
    torch.autograd._engine_run_backward = wrapped
