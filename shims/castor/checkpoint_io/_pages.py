"""Mapped pages of a file count as the process's memory once they are read. They are returned while a model is loaded from it."""
import contextlib
import ctypes
import mmap

_AFTER = 64 << 20  # bytes of parameters and buffers; a call of the system for each module would cost more than it saves


def _ranges(mapped):
    """The whole pages of tensors whose storages are mappings of files that nobody has written: pages that are returned are read from
    the file again. (address, bytes)"""
    found = set()
    for t in mapped:
        storage = t.untyped_storage()
        begin = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (storage.data_ptr() + storage.nbytes()) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > begin:
            found.add((begin, end - begin))
    return found


def _give_back(ranges):
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for address, size in ranges:
        madvise(address, size, mmap.MADV_DONTNEED)


@contextlib.contextmanager
def returned(module, mapped):
    """While `module` is loaded: each time that some more of it has been loaded, the pages are returned."""
    ranges, loaded = _ranges(mapped), 0

    def after(of, _):
        nonlocal loaded
        loaded += sum(t.nbytes for t in (*of._parameters.values(), *of._buffers.values()) if t is not None)
        if loaded >= _AFTER:
            loaded = 0
            _give_back(ranges)

    hooks = [m.register_load_state_dict_post_hook(after) for m in module.modules()] if ranges else []
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
