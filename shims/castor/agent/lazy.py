"""Parameters under construction: what all ranks of a node initialize alike is kept once (docs/lazy.md).

Every rank runs the script's own initialization, so values and random states are what they are without Castor. Now and then the
core asks for a sweep (lazy/pool_watch.h): this module says which memory is parameters, and whether nobody writes to it."""
import atexit
import ctypes
import functools
import sys
import threading
import weakref

import torch

from . import core
from .backward import reducer
from .core import store, tensors
from .nodes import across
from .precision import masters
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
    with torch._C.DisableTorchFunction():
        if key in _modules or not any(map(_is_worth, module._parameters.values())):
            return
        _modules[key] = weakref.ref(module, tensors.while_python_runs(lambda: _modules.pop(key, None)))
    if not _started:
        _start()


def _is_worth(p):
    return type(p) is torch.nn.Parameter and p.device.type == "cpu" and p.numel() * p.element_size() >= BYTES_WORTH


def _storages():
    """By address, the storages of all parameters, as they are now."""
    found = {}
    for reference in list(_modules.values()):
        module = reference()
        for p in module._parameters.values() if module is not None else ():
            if _is_worth(p) and p.layout is torch.strided:
                storage = p.untyped_storage()
                found[storage.data_ptr()] = storage
    return found


def _who_may_write():
    """What else runs in this process that could be writing to a parameter; None: nothing."""
    main = threading.main_thread().ident
    for identity in sys._current_frames():
        thread = threading._active.get(identity)
        if identity != main and type(thread).__name__ not in _IDLE_THREADS:
            return f"the thread {thread.name!r}" if thread is not None else "a thread that is not Python's"
    return None if core.pool_is_safe() else "a collective or a message"


def _sweep():
    """Between two instructions of the main thread, which is in no operation of PyTorch."""
    if not store.active():
        return
    if not _started:
        core.pool_sweep(None, 0)
        return
    writer = _who_may_write()
    if writer is not None:
        core.pool_sweep(None, 0)
        _say(f"while there is {writer}, which could write to parameters, this rank holds its own", once="writer")
        return
    with torch._C.DisableTorchFunction():
        storages = _storages()
        core.pool_sweep(core.pointers(list(storages)), len(storages))


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
def _scheduled(_):
    try:
        _sweep()
    except Exception as error:
        stop()
        _say(f"stopped: {type(error).__name__}: {error}")
    except BaseException as error:  # a signal's handler raised: it is the script's, not this function's
        if store.active():
            core.pool_sweep(None, 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(threading.main_thread().ident), ctypes.py_object(type(error)))
    return 0


def _start():
    """With the first module: what makes no model (torchrun itself, a tool) needs no pool."""
    global _started, _wanted
    later = ctypes.cast(ctypes.pythonapi.Py_AddPendingCall, ctypes.c_void_p)
    try:
        core.pool_start(later, ctypes.cast(_scheduled, ctypes.c_void_p))
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
    """Nothing is swept before the next module is made."""
    global _started
    _modules.clear()
    if _started:
        _started = False
        _stop_thread()


def _stop_thread():
    if store.active():  # a forked child has no such thread, and maybe its lock
        core.pool_stop()


def wanted():
    return _wanted


def end():
    """The models are made: what is not shared yet is swept once more."""
    _sweep()
    stop()


def stop():
    global _wanted
    _wanted = False
    pause()


def figures():
    """(bytes that the pool holds, bytes that processes found there, bytes that they were the first to bring)"""
    values = [ctypes.c_uint64() for _ in range(3)]
    core.pool_get(*map(ctypes.byref, values))
    return tuple(value.value for value in values)


@functools.cache
def _patch():
    atexit.register(_stop_thread)
    module = torch.nn.Module
    register, set_state = module.register_parameter, module.__setstate__

    @functools.wraps(register)
    def register_parameter(self, name, param):
        register(self, name, param)
        if _wanted and param is not None:
            _remember(self)

    @functools.wraps(set_state)
    def setstate(self, state):  # copy.deepcopy and pickle put the parameters in place themselves
        set_state(self, state)
        if _wanted:
            _remember(self)

    module.register_parameter, module.__setstate__ = register_parameter, setstate
    wrapper = torch.nn.parallel.distributed
    if core.plugin_engine() and hasattr(wrapper, "_sync_module_states"):
        wrapper._sync_module_states = _adopt_before_broadcast(wrapper._sync_module_states)


class Observer(events.Observer):
    """Training has begun: nothing is swept any more, until another model is made."""

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
    return core.option_text("CASTOR_RANK") == "0"


def _adopt_before_broadcast(stock):
    """DistributedDataParallel sends rank 0's parameters to all, who write them over their own, equal as they are. Adoption
    does that without a copy for each rank; the rest is sent."""

    @functools.wraps(stock)
    def sync_module_states(module, process_group, broadcast_bucket_size, src, params_and_buffers_to_ignore, *args, **kwargs):
        ignored = set(params_and_buffers_to_ignore)
        named = {name: p for name, p in module.named_parameters() if name not in ignored and p.requires_grad}
        sparse = any(getattr(m, "sparse", False) for m in module.modules())
        if src == 0 and named and masters.dtype is None and not reducer.why_not(named.values(), process_group, [sparse]):
            store.adopt(across.group_of(process_group), list(named.values()))
            ignored |= named.keys()
        return stock(module, process_group, broadcast_bucket_size, src, ignored, *args, **kwargs)

    return sync_module_states

