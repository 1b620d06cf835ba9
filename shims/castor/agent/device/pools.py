"""Which pools of memory are open, and what PyTorch's allocator is told meanwhile.

While a pool is open on a device, whichever thread opened it, the allocator takes each `record_stream` there for a part of a graph, and
forgets it when the memory is freed before the pool is closed: another stream may then write to memory that is still read. So it is told of
streams only while no pool is open; what a script says meanwhile is kept, with the memory, until the last one is closed."""
import contextlib
import functools
import threading

import torch

from .. import patching

_use_mem_pool = torch.cuda.memory.use_mem_pool
_stock_record_stream = torch.Tensor.record_stream
_lock = threading.RLock()  # of both; what is freed while it is held may come here again
_open = {}  # device: how many pools are open, in all threads
_untold = {}  # device: the (tensor, stream) of which the allocator hears when they are closed
_ended = []  # pools that end, which is fatal while one is open
_emptying = None  # what is to be called then: the allocator gives back what it has cached, which is an error while one is open


def _record_stream(t, stream):
    """Of a conjugate or a negated view PyTorch 2.11 drops a reference too many: its fallback for these takes the tensor for a result."""
    if t.is_conj() or t.is_neg():
        t = torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage())
    _stock_record_stream(t, stream)


@contextlib.contextmanager
def opened(pool, device):
    """torch.cuda.use_mem_pool, for a device's number."""
    with _lock:  # what the allocator is told before, it has heard
        _open[device] = _open.get(device, 0) + 1
    try:
        with _use_mem_pool(pool, device):
            yield
    finally:
        _closed(device)


def _closed(device):
    told = []  # its memory is freed outside of the lock
    with _lock:
        _open[device] -= 1
        if not _open[device]:
            told = _untold.pop(device, [])
            for t, stream in told:
                _record_stream(t, stream)
    _settle()


def _settle():
    global _emptying
    with _lock:  # nobody opens one meanwhile
        if any(_open.values()):
            return
        _ended.clear()
        empty, _emptying = _emptying, None
        if empty is not None:
            empty()


def end(some):
    """Ends these pools, which gives back what they keep and no tensor has, as soon as none is open."""
    with _lock:
        _ended.extend(some)
        some.clear()
        _settle()


def empty_cache(empty=torch._C._cuda_emptyCache):
    """The allocator gives back what it has cached, as soon as no pool is open."""
    global _emptying
    with _lock:
        _emptying = empty
        _settle()


def record(t, stream):
    """Tells the allocator that the stream uses the tensor's memory. False: it will forget it if the memory is freed now, since a pool is
    open."""
    with _lock:
        _record_stream(t, stream)
        return not _open.get(t.device.index)


def _told_while_closed(stock):
    @functools.wraps(stock)
    def record_stream(self, stream):
        if self.device.type != "cuda":
            return stock(self, stream)
        with _lock:
            _record_stream(self, stream)
            if _open.get(self.device.index):
                _untold.setdefault(self.device.index, []).append((self.detach(), stream))

    return record_stream


def _counted(stock):
    @functools.wraps(stock)
    def use_mem_pool(pool, device=None):
        return opened(pool, torch.cuda.current_device() if device is None else torch.cuda._utils._get_device_index(device))

    return use_mem_pool


def install():
    patching.replace("torch.Tensor.record_stream", _told_while_closed)
    patching.replace("torch.cuda.use_mem_pool", _counted)
