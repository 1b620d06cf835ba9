"""Activations on the host (CASTOR_ACTIVATIONS): what autograd saves of a model's forward pass goes to pinned memory of the host, and comes back ahead of
its use in the backward pass.

The unit is the storage: tensors that autograd saves over the same bytes travel once, whatever views they are. Copies go on two streams of
their own, and the host waits for nothing: only so many bytes as the window has are on their way, and then the script's stream waits for the
oldest of them, whose memory is free for what that stream does next. So what a pass takes of the device is the same each time.

Stay where they are: parameters and buffers, what is small, what somebody else still had when the backward pass came to it, and what comes
last before the backward pass. A saved tensor that was changed in place since is the error that it is in plain PyTorch."""
import atexit
import collections
import contextlib
import functools
import os
import sys
import threading
import weakref

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .. import core, patching
from ..common import store, traced
from ..process import events
from . import homes

_WINDOW, _WINDOW_SHARE = 1024, 16  # under way each way: so many of the smallest that leave, and a part of a device's memory; a larger storage goes alone
_SHORT_SHARE = 4  # of a device: `auto` moves what would leave less; _OF_TRIALS: where a call of the whole batch is tried, whose backward pass needs as much more
_OF_TRIALS = 2


class _Saved:
    """The bytes of one storage, as they were when autograd saved them.

    tensor   over the storage, until it has left, and then over nothing; it counts what is written to the script's in place. version: its count then
    here     it has not left; stream: in which it was saved
    weak     the storage, which tells whether anybody else still has it
    unread   tensors that autograd has saved over it, and not asked for yet
    host     the bytes there, if it leaves; left: the event after that copy
    back     the storage on the device to which they come back; ready: the event after that copy; waited: the script's stream has waited for it"""

    __slots__ = "mover", "tensor", "version", "here", "stream", "weak", "bytes", "host", "left", "unread", "back", "ready", "waited", "__weakref__"

    def __init__(self, mover, tensor, storage):
        self.mover, self.tensor, self.version = mover, tensor, tensor._version
        self.here, self.stream = True, torch.cuda.current_stream(mover.device)
        self.weak, self.bytes = StorageWeakRef(storage), storage.nbytes()
        self.host = self.left = self.back = self.ready = None
        self.unread, self.waited = 0, False

    def is_as_saved(self):
        return self.tensor._version == self.version

    def __del__(self):
        if self.back is not None and not self.waited and not sys.is_finalizing():  # no graph will ever read it; its memory may be written to again after the copy
            torch.cuda.current_stream(self.mover.device).wait_event(self.ready)


class _Packed:
    """What autograd keeps in place of a tensor."""

    __slots__ = "saved", "dtype", "size", "stride", "offset"

    def __init__(self, saved, t):
        self.saved, self.dtype = saved, t.dtype
        self.size, self.stride, self.offset = t.size(), t.stride(), t.storage_offset()

    def over(self, storage, device):
        return torch.empty(0, dtype=self.dtype, device=device).set_(storage, self.offset, self.size, self.stride)


def _bytes_of(storage, device):
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


class _Mover:
    """A device's activations.

    staying   `auto`: what may leave yet, the oldest first
    leaving   what is on its way to the host, the oldest first
    order     weak references to what has left since the last backward pass, in that order
    moved     bytes that have left since then, passed: with those that stayed; before: `passed` of the pass before
    quota     `auto`: bytes that leave, from the first on, since a pass was short of so many
    stays     storages that others had when the backward pass came to them"""

    def __init__(self, index):
        self.device = torch.device("cuda", index)
        self.out, self.back = torch.cuda.Stream(index), torch.cuda.Stream(index)
        self.total = torch.cuda.get_device_properties(index).total_memory
        self.window = min(self.total // _WINDOW_SHARE, _WINDOW * core.options.activations_least)
        self.lock = threading.RLock()
        self.saved = weakref.WeakValueDictionary()  # by storage and version
        self.staying = weakref.WeakValueDictionary()  # by its number in the pass
        self.leaving, self.leaving_bytes = collections.OrderedDict(), 0
        self.order, self.places = [], weakref.WeakKeyDictionary()
        self.moved = self.passed = self.before = self.quota = self.looked = self.unused = 0
        self.short = self.reading = False
        self.stays = {}
        self.on_host = self.most_on_host = self.all_moved = 0

    # ---- to the host

    def pack(self, t):
        with self.lock:
            storage = t.untyped_storage()
            saved = self.saved.get((storage._cdata, t._version))
            if saved is None or not saved.is_as_saved():  # `.data` has a count of its own
                saved = self._save(t, storage)
                if saved is None:
                    return None
            saved.unread += 1
            return _Packed(saved, t)

    def _save(self, t, storage):
        """None: it stays."""
        if self.reading:  # another pass begins
            self.reading = False
            self.before, self.passed, self.moved, self.looked = self.passed, 0, 0, 0
            self.order.clear()
            self.staying.clear()
            self.stays = {cdata: weak for cdata, weak in self.stays.items() if not weak.expired()}
        at = self.passed
        self.passed += storage.nbytes()
        weak = self.stays.get(storage._cdata)
        if weak is not None and not weak.expired():
            return None
        if core.options.activations == "offload" and self.before and at >= self.before - self.window:
            return None
        saved = self.saved[storage._cdata, t._version] = _Saved(self, t.detach(), storage)
        if core.options.activations == "offload" or self.moved < self.quota:
            return saved if self._leave(saved) else None
        self.staying[at] = saved
        wanted = saved.bytes if self._is_short() else 0
        for place in sorted(self.staying) if wanted else ():
            oldest = self.staying.pop(place, None)
            if oldest is not None and oldest.is_as_saved() and self._leave(oldest):
                wanted -= oldest.bytes
            if wanted <= 0:
                break
        return saved

    def _is_short(self):
        """Asked again each time that another sixty-fourth of the device was saved."""
        if not self.looked or self.passed - self.looked > self.total // 64:
            if not self.looked:
                self.unused = homes.unused(self.device.index)
            self.looked = self.passed
            free = torch.cuda.mem_get_info(self.device)[0] + torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
            found = homes.statistics(self.device.index)
            movable = sum(kind[core.HOME_DEVICE] for kind in found.bytes)  # which counts as free
            self.short = free - movable - self.unused < self.total // (_OF_TRIALS if getattr(_thread, "tried", False) else _SHORT_SHARE)
        return self.short

    def _leave(self, saved):
        """False: the host has no memory for it."""
        try:
            saved.host = torch.empty(saved.bytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        except RuntimeError:
            return False
        self.out.wait_stream(saved.stream)
        with torch.cuda.stream(self.out):
            saved.host.copy_(_bytes_of(saved.tensor.untyped_storage(), self.device), non_blocking=True)
            saved.left = self.out.record_event()
        core.event_device_copied(self.device.index, core.HOME_HOST, saved.bytes, self.out.cuda_stream)
        self.leaving[saved] = saved.bytes
        self.leaving_bytes += saved.bytes
        while self.leaving_bytes > self.window and len(self.leaving) > 1:
            self._gone(next(iter(self.leaving)))
        self.places[saved] = len(self.order)
        self.order.append(weakref.ref(saved))
        self.moved += saved.bytes
        self.quota = max(self.quota, self.moved)
        self.all_moved += saved.bytes
        self.on_host += saved.bytes
        self.most_on_host = max(self.most_on_host, self.on_host)
        weakref.finalize(saved, self._ended, saved.bytes).atexit = False
        return True

    def _ended(self, size):
        self.on_host -= size

    def _gone(self, saved):
        """Its memory is the script's stream's, from here on."""
        self.leaving_bytes -= self.leaving.pop(saved)
        saved.stream.wait_event(saved.left)
        torch.cuda.current_stream(self.device).wait_event(saved.left)  # which may be another one
        saved.here, saved.tensor.data = False, torch.empty(0, dtype=saved.tensor.dtype, device=self.device)

    # ---- and back

    def unpack(self, packed):
        with self.lock:
            self.reading = True
            saved, stream = packed.saved, torch.cuda.current_stream(self.device)
            saved.unread -= 1
            if not saved.is_as_saved():
                raise _changed(packed, saved.tensor, saved.version)
            if saved.here:
                t = packed.over(saved.tensor.untyped_storage(), self.device)
            else:
                if saved.back is None:
                    self._bring(saved, stream)
                stream.wait_event(saved.ready)
                saved.waited = True
                t = packed.over(saved.back, self.device)
            if saved.unread <= 0:
                if saved in self.leaving:
                    self._gone(saved)
                elif not saved.weak.expired():
                    self.stays[saved.weak.cdata] = saved.weak
                saved.back = None
            self._bring_ahead(saved, stream)
            return t

    def _bring(self, saved, stream):
        storage = torch.empty(saved.bytes, dtype=torch.uint8, device=self.device).untyped_storage()
        self.back.wait_stream(stream)  # it may be memory that the stream has just left
        self.back.wait_event(saved.left)
        with torch.cuda.stream(self.back):
            _bytes_of(storage, self.device).copy_(saved.host, non_blocking=True)
            saved.ready = self.back.record_event()
        core.event_device_copied(self.device.index, core.HOME_DEVICE, saved.bytes, self.back.cuda_stream)
        saved.back, saved.waited = storage, False

    def _bring_ahead(self, saved, stream):
        """What left before, in turn, as far as the window goes."""
        place, ahead = self.places.get(saved, 0), 0
        while place > 0 and ahead < self.window:
            place -= 1
            before = self.order[place]() if place < len(self.order) else None
            if before is None or before.unread <= 0 or before.here:
                continue
            ahead += before.bytes
            if before.back is None and ahead <= self.window:
                core.device_optional(1)
                try:
                    self._bring(before, stream)
                except torch.OutOfMemoryError:
                    return
                finally:
                    core.device_optional(0)


def _changed(like, t, version):
    """The error of plain PyTorch, which looks only where there are no hooks. like: has the size of the tensor."""
    size = list(like.size if isinstance(like, _Packed) else like.size())
    return RuntimeError(f"one of the variables needed for gradient computation has been modified by an inplace operation: [{t.type()} {size}] is at "
                        f"version {t._version}; expected version {version} instead. Hint: enable anomaly detection to find the operation that failed to "
                        "compute its gradient, with torch.autograd.set_detect_anomaly(True).")


_movers = {}
_making = threading.Lock()
_thread = threading.local()  # .stay: addresses of the storages of the model that runs; None: none runs; .tried: its call is Castor's
_has_device = False


def _mover_of(index):
    with _making:
        if index not in _movers:
            _movers[index] = _Mover(index)
        return _movers[index]


def _is_ordinary(t):
    return (t.is_cuda and type(t) in (torch.Tensor, torch.nn.Parameter) and t.layout is torch.strided and not (t.is_conj() or t.is_neg() or t.is_inference())
            and not (t.is_leaf and t.requires_grad))


def pack(t):
    stay = getattr(_thread, "stay", None)  # None: a thread of a backward pass that the model runs
    if stay is not None and _is_ordinary(t):
        storage = t.untyped_storage()
        if storage.nbytes() >= core.options.activations_least and storage.data_ptr() not in stay and not torch.cuda.is_current_stream_capturing():
            packed = _mover_of(t.device.index).pack(t)
            if packed is not None:
                return packed
    return t.detach(), None if t.is_inference() else t._version


def unpack(packed):
    if isinstance(packed, _Packed):
        return packed.saved.mover.unpack(packed)
    t, version = packed
    if version is not None and t._version != version:
        raise _changed(t, t, version)
    return t


def are_own(hooks):
    """Whether these hooks of autograd, (pack, unpack), are this file's."""
    return hooks is not None and hooks[0] is pack


def _begins(module):
    """Whether this is the outermost call of a model of which activations may leave."""
    if not torch.is_grad_enabled() or not store.active() or events.is_running():
        return False
    autograd = torch._C._autograd
    if not autograd._saved_tensors_hooks_is_enabled() or autograd._top_saved_tensors_default_hooks(False) is not None or torch.jit.is_tracing():
        return False
    first = next(module.parameters(), None)
    return first is not None and first.is_cuda


def _need_device():
    global _has_device
    _has_device = _has_device or torch.cuda.is_available()
    if not _has_device:
        raise core.Error(_refusal("this process has no GPU"))


def _refusal(why):
    return f"castor: CASTOR_ACTIVATIONS={core.options.activations} moves activations from a GPU to the host, and {why}: leave it out"


@contextlib.contextmanager
def _leaving(module, tried=False):
    _thread.tried, quotas = tried, {index: mover.quota for index, mover in _movers.items()}
    _thread.stay = {t.untyped_storage().data_ptr() for some in (module.parameters(), module.buffers()) for t in some
                    if t.layout is torch.strided and not torch.nn.parameter.is_lazy(t)}
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield
    finally:
        _thread.stay = None
        for index, mover in _movers.items() if tried else ():  # the script's passes are short of less
            mover.quota = quotas.get(index, 0)


def leaving_if_short(module):
    """For a call of the module that Castor asks for: what it saves leaves as far as the device's room asks for, though CASTOR_ACTIVATIONS is `keep`."""
    return _leaving(module, tried=True) if getattr(_thread, "stay", None) is None and _begins(module) else contextlib.nullcontext()


def _around(stock):
    def call(self, *args, **kwargs):
        if getattr(_thread, "stay", None) is not None:  # a model runs already
            return stock(self, *args, **kwargs)
        _need_device()
        if not _begins(self):
            return stock(self, *args, **kwargs)
        with _leaving(self):
            return stock(self, *args, **kwargs)

    return traced.unless_compiled(functools.wraps(stock)(call), stock, in_graphs=True)


def tell():
    is_first = core.options.rank <= 0 and os.environ.get("RANK", "0") == "0"
    for index, mover in sorted(_movers.items()) if is_first and store.active() else ():
        if not mover.all_moved:
            continue
        core.log(2, f"device {index}: activations of {mover.most_on_host / 2**20:.2f} MiB were on the host at a time, {mover.all_moved / 2**20:.2f} MiB in all "
                    f"(CASTOR_ACTIVATIONS={core.options.activations})".encode())


def install():
    if core.options.activations == "keep":
        return
    if not torch.version.cuda:
        raise core.Error(_refusal("this PyTorch is for CPUs"))
    atexit.register(tell)
    patching.replace("torch.nn.Module.__call__", _around)
