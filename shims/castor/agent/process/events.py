"""Backward passes, counted at their outermost depth.

Every call of the autograd engine goes through torch.autograd.graph._engine_run_backward; reentrant checkpointing nests
it. The end of a backward is the return of the outermost call. What belongs to a device runs in a thread of PyTorch's own, of which all work,
nested calls as well, belongs to the pass that another thread has called last."""
import bisect
import contextlib
import functools
import operator
import threading

import torch
import torch.autograd.graph

from .. import core, patching
from . import stacks

_thread = threading.local()  # .pending: of the outermost pass that this thread has called
_running = []  # the same of all threads, in the order of their calls


def _pending():
    """What comes at the end of the pass that runs this; None: none does."""
    own = getattr(_thread, "pending", None)
    if own is None and _running and torch._C._current_graph_task_id() >= 0:
        return _running[-1]
    return own


def is_running():
    """Whether this is called by a backward pass."""
    return _pending() is not None


def at_end(callback, raised, order=0):
    """Runs `callback` when the running outermost backward has returned, after those of a lower order. If it, or a callback, raises: runs `raised(error)`."""
    pending = _pending()
    if pending is not None:
        bisect.insort(pending, (order, callback, raised), key=operator.itemgetter(0))
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


_engine = None  # of PyTorch


class _Pending(list):
    """(order, callback, raised) each, for the end of a pass. accumulated: a pass that it called, as a reentrant checkpoint does, gave gradients to parameters."""

    accumulated = False


@contextlib.contextmanager
def _outermost():
    """What comes at the end of the pass that runs in here; passes that this one calls, in other threads too, are parts of it."""
    pending = _thread.pending = _Pending()
    _running.append(pending)
    try:
        yield pending
    finally:
        _thread.pending = None
        _running[:] = [other for other in _running if other is not pending]


def run_unheard(outputs, gradients, inputs, keeps=True):
    """A pass from the outputs to the inputs, of which no observer hears; keeps: the graph stays. (Their gradients, whether a pass that it called gave some to
    parameters)."""
    with torch._C._DisableAutocast(), _outermost() as pending:  # a script's pass is outside of what it casts
        made = _engine(tuple(outputs), tuple(gradients), keeps, False, tuple(inputs), allow_unreachable=True, accumulate_grad=False)
    for _, callback, _ in pending:
        callback()
    return made, pending.accumulated


def _wrap(run):
    global _engine
    _engine = run

    @stacks.unseen
    @functools.wraps(run)
    def engine_run_backward(t_outputs, *args, **kwargs):
        accumulates = kwargs.get("accumulate_grad", False)
        running = _pending()
        if running is not None:
            running.accumulated = running.accumulated or accumulates
            return run(t_outputs, *args, **kwargs)
        begin = core.phase_begin(core.PHASE_BACKWARD) if accumulates else None
        pending, heard = (), tuple(_observers) if accumulates else ()
        try:
            try:
                with _outermost() as pending:
                    for observer in heard:
                        observer.backward_begun(t_outputs, bool(args[2]) if len(args) > 2 else kwargs.get("create_graph", False))
                        args = (observer.scaled(args[0]), *args[1:])
                    if not accumulates and len(args) > 3:
                        for observer in _observers:
                            observer.gradients_taken(args[3], bool(args[2]))
                    result = run(t_outputs, *args, **kwargs)
                if not accumulates and len(args) > 3:
                    for observer in _observers:
                        result = observer.gradients_made(result, bool(args[2]))
                for _, callback, _ in pending:
                    callback()
            except BaseException as error:
                for *_, raised in pending:
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
