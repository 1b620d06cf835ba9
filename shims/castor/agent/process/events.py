"""Backward passes, counted at their outermost depth.

Every call of the autograd engine goes through torch.autograd.graph._engine_run_backward; reentrant checkpointing nests
it. The end of a backward is the return of the outermost call of the thread."""
import functools
import threading

import torch
import torch.autograd.graph

from .. import core, patching
from . import stacks

_thread = threading.local()


def depth():
    return getattr(_thread, "depth", 0)


def at_end(callback, raised):
    """Runs `callback` when the running outermost backward has returned. If it, or a callback, raises: runs `raised(error)`."""
    if depth():
        _thread.pending.append((callback, raised))
    else:  # an engine call that did not come through Python
        torch.autograd.Variable._execution_engine.queue_callback(callback)


class Observer:
    """Observes outermost backward passes that accumulate gradients into leaves."""

    def backward_begun(self, outputs, create_graph):
        pass

    def scaled(self, roots):
        """Returns the gradients of the outputs with which the pass begins."""
        return roots

    def backward_raised(self, error):
        """The pass did not return: it does no more than it has done so far."""

    def backward_left(self):
        """The pass returned, or raised."""

    def backward_ended(self, outputs, synchronized):
        pass

    def gradients_taken(self, inputs, create_graph):
        """Before a pass that returns gradients (autograd.grad)."""

    def gradients_made(self, gradients, create_graph):
        """After it: what the script gets."""
        return gradients


_observers = []


def observe(observer):
    """`observer` is one more observer."""
    _observers.append(observer)


def observe_only(observer):
    """From here on `observer` is the only observer."""
    _observers[:] = [observer]


def _wrap(run):
    @stacks.unseen
    @functools.wraps(run)
    def engine_run_backward(t_outputs, *args, **kwargs):
        if depth():
            _thread.depth += 1
            try:
                return run(t_outputs, *args, **kwargs)
            finally:
                _thread.depth -= 1
        accumulates = kwargs.get("accumulate_grad", False)
        begin = core.phase_begin(core.PHASE_BACKWARD) if accumulates else None
        _thread.depth, _thread.pending = 1, []
        heard, pending = tuple(_observers) if accumulates else (), _thread.pending
        try:
            try:
                try:
                    for observer in heard:
                        observer.backward_begun(t_outputs, bool(args[2]) if len(args) > 2 else kwargs.get("create_graph", False))
                        args = (observer.scaled(args[0]), *args[1:])
                    if not accumulates and len(args) > 3:
                        for observer in _observers:
                            observer.gradients_taken(args[3], bool(args[2]))
                    result = run(t_outputs, *args, **kwargs)
                finally:
                    _thread.depth, _thread.pending = 0, []
                if not accumulates and len(args) > 3:
                    for observer in _observers:
                        result = observer.gradients_made(result, bool(args[2]))
                for callback, _ in pending:
                    callback()
            except BaseException as error:
                for _, raised in pending:
                    raised(error)
                for observer in heard:
                    observer.backward_raised(error)
                raise
            finally:
                for observer in heard:
                    observer.backward_left()
            for observer in heard:
                observer.backward_ended(t_outputs, bool(pending))
            if accumulates:
                core.event_backward(begin, core.now_ns(), bool(pending))
        finally:
            if accumulates:
                core.phase_end(0)
        return result

    return engine_run_backward


def install(*observers):
    _observers.extend(observers)
    patching.replace("torch.autograd.graph._engine_run_backward", _wrap)
