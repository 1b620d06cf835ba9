"""Lazy initialization: the node keeps one copy, the staging, of what its ranks initialize alike (docs/lazy.md).

Every rank runs the script's own initialization, so values and random states are the same as without Castor. Now and then the
core asks for a sweep (lazy/staging.h). Then this module says which memory holds parameters, and whether it is written."""
import atexit
import ctypes
import functools
import sys
import threading
import weakref

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from . import core, patching
from .common import store, tensors
from .process import events

BYTES_WORTH = 64 << 10  # smaller parameters are not worth a mapping of their own
_IDLE_THREADS = {"TMonitor"}  # classes of threads that touch no tensor: tqdm's

_modules = {}  # id: weak reference to a module that the main thread has put parameters into
_said = set()
_wanted = False  # modules are watched
_started = False


def _say(text, level=1, once=None):
    if (once or text) not in _said:
        core.log(level, f"CASTOR_LAZY_INIT: {text}".encode())
    _said.add(once or text)


def _remember(module):
    if threading.get_ident() != threading.main_thread().ident or not store.active():
        return
    key = id(module)
    if key in _modules:
        return
    _modules[key] = weakref.ref(module, tensors.while_python_runs(lambda: _modules.pop(key, None)))
    if not _started:
        _start()


def _is_worth(p):
    return type(p) is torch.nn.Parameter and p.device.type == "cpu" and p.numel() * p.element_size() >= BYTES_WORTH


def _is_any_worth(*parameters):
    with torch._C.DisableTorchFunction():
        return any(map(_is_worth, parameters))


def _storages():
    """The storages of all parameters, by their addresses now."""
    found = {}
    for reference in list(_modules.values()):
        module = reference()
        for p in module._parameters.values() if module is not None else ():
            if _is_worth(p) and p.layout is torch.strided:
                storage = p.untyped_storage()
                found[storage.data_ptr()] = storage
    return found


def _who_may_write():
    """A thread or an operation of this process that could be writing to a parameter; None: there is none."""
    main = threading.main_thread().ident
    for identity in sys._current_frames():
        thread = threading._active.get(identity)
        if identity != main and type(thread).__name__ not in _IDLE_THREADS:
            return f"the thread {thread.name!r}" if thread is not None else "a thread that is not Python's"
    return None if core.staging_is_safe() else "a collective or a message"


def _sweep():
    """Runs between two instructions of the main thread, outside of PyTorch's operations."""
    if not store.active():
        return
    if not _started:
        core.staging_sweep(None, 0)
        return
    writer = _who_may_write()
    if writer is not None:
        core.staging_sweep(None, 0)
        _say(f"while there is {writer}, which could write to parameters, this rank holds its own", once="writer")
        return
    with torch._C.DisableTorchFunction():
        storages = _storages()
        core.staging_sweep(core.pointers(list(storages)), len(storages))


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
def _scheduled(_):
    try:
        _sweep()
    except Exception as error:
        stop()
        _say(f"stopped: {type(error).__name__}: {error}")
    except BaseException as error:  # a signal's handler raised: the script must get it
        if store.active():
            core.staging_sweep(None, 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(threading.main_thread().ident), ctypes.py_object(type(error)))
    return 0


def _start():
    """Starts with the first module: a process that makes no model (torchrun itself, a tool) needs no staging."""
    global _started, _wanted
    later = ctypes.cast(ctypes.pythonapi.Py_AddPendingCall, ctypes.c_void_p)
    try:
        core.staging_start(later, ctypes.cast(_scheduled, ctypes.c_void_p))
        _started = True
    except core.Error as error:
        _wanted = False
        _say(f"{str(error).removeprefix('castor: ')}: parameters are made as without it")


def begin():
    """Modules that are made from here on are watched, until stop()."""
    global _wanted
    _patch()
    _wanted = True


def pause():
    """Stops sweeping until the next module is made."""
    global _started
    _modules.clear()
    if _started:
        _started = False
        _stop_thread()


def _stop_thread():
    if store.active():  # a forked child has no such thread, and maybe its lock
        core.staging_stop()


def wanted():
    return _wanted


def was_wanted():
    """begin() was called at some time."""
    return _patch.cache_info().currsize > 0


def end():
    """The models are made: sweeps parameters that are not shared yet once more, then stops."""
    _sweep()
    stop()


def stop():
    global _wanted
    _wanted = False
    pause()


def figures():
    """(bytes in staging, bytes that processes found there already, bytes that they were the first to put there)"""
    values = [ctypes.c_uint64() for _ in range(3)]
    core.staging_get(*map(ctypes.byref, values))
    return tuple(value.value for value in values)


@functools.cache
def _patch():
    atexit.register(_stop_thread)
    register_module_parameter_registration_hook(_registered)
    patching.replace("torch.nn.Module.__setstate__", _wrap_set_state)


def _registered(module, name, param):
    if _wanted and _is_any_worth(param):
        _remember(module)


def _wrap_set_state(set_state):
    @functools.wraps(set_state)
    def setstate(self, state):  # copy.deepcopy and pickle set parameters themselves
        set_state(self, state)
        if _wanted and _is_any_worth(*self._parameters.values()):
            _remember(self)

    return setstate


class Observer(events.Observer):
    """Stops sweeping when training begins, until another model is made."""

    def backward_begun(self, outputs, create_graph):
        if not _started:
            return
        pause()
        _, found, made = figures()
        if made and _is_first_rank():
            _say(f"{made >> 10} KiB of parameters were made on this node, and {found >> 10} KiB were the same again", 3)
        if made > 256 << 20 and found * 20 < made:
            _say("the ranks initialize their parameters differently (do they seed alike?): each held its own until the model "
                 "was wrapped")


def _is_first_rank():
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank() == 0
    return core.options.rank == 0
