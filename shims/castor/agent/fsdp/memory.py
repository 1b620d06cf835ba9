"""Files in memory that all ranks of a node map, and whole tensors in them.

A file is mapped twice: `shared`, where what is written reaches every rank, and `private`, where the script sees it. A page that the
script writes becomes its own rank's, until refresh() drops it. Only between two barriers is anything written to `shared`, so every
rank reads whole tensors at any other time without another rank's help."""
import ctypes
import math
import mmap
import os
import weakref

import torch

from .. import core

PAGE = mmap.PAGESIZE
_MAP_FIXED = 0x10  # of Linux, on every machine
_libc = ctypes.CDLL(None)
_libc.mmap.restype = ctypes.c_void_p
_files = weakref.WeakSet()


def _before_fork():
    for file in _files:
        file.keep_snapshot()


def _in_child():
    for file in _files:
        file.enter_snapshot()


os.register_at_fork(before=_before_fork, after_in_child=_in_child)


class NodeFile:
    """On every rank of the group together: a file of `size` bytes, zero at first."""

    def __init__(self, group, size, what):
        self.snapshot = None  # (mapping, descriptor) of what forked children see
        self.size = size = max(-(-size // PAGE) * PAGE, PAGE)
        told = b""
        if group.rank == 0:
            fd = os.memfd_create("castor-fsdp", os.MFD_CLOEXEC)
            os.ftruncate(fd, size)
            told = f"{os.getpid()} {fd}".encode()
        pid, number = group.broadcast(told.ljust(48), what).split()
        try:
            if group.rank != 0:
                fd = os.open(f"/proc/{int(pid)}/fd/{int(number)}", os.O_RDWR | os.O_CLOEXEC)
            self.shared = mmap.mmap(fd, size, flags=mmap.MAP_SHARED)
            self.private = mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE)
        except OSError as error:
            raise core.Error(f"castor: {what}: this rank cannot map rank 0's memory ({error}): the plugin fsdp needs all ranks of a process "
                             "group on one node, under one user") from error
        group.barrier(what)  # rank 0 keeps the descriptor open until all have it
        os.close(fd)

    def keep_snapshot(self):
        """Before a fork: keeps a copy of what the script sees, unless the last one is the same."""
        here = ctypes.addressof(ctypes.c_char.from_buffer(self.private))
        if self.snapshot is not None:
            there = ctypes.addressof(ctypes.c_char.from_buffer(self.snapshot[0]))
            if _libc.memcmp(ctypes.c_void_p(here), ctypes.c_void_p(there), ctypes.c_size_t(self.size)) == 0:
                return
            os.close(self.snapshot[1])
        fd = os.memfd_create("castor-fsdp-snapshot", os.MFD_CLOEXEC)
        os.ftruncate(fd, self.size)
        copy = mmap.mmap(fd, self.size, flags=mmap.MAP_SHARED)
        copy[:] = memoryview(self.private)
        self.snapshot = copy, fd

    def enter_snapshot(self):
        """In a forked child: the copy takes the place of the memory that the ranks go on to write."""
        here = ctypes.addressof(ctypes.c_char.from_buffer(self.private))
        _libc.mmap(ctypes.c_void_p(here), ctypes.c_size_t(self.size), mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED,
                   self.snapshot[1], ctypes.c_long(0))

    def __del__(self):
        if self.snapshot is not None:
            os.close(self.snapshot[1])


class Region:
    """A dense tensor in a file: `shared` is its flat, padded memory, where all ranks write it."""

    __slots__ = ("file", "offset", "bytes", "shape", "stride", "dtype", "shared", "_view", "__weakref__")

    def __init__(self, file, offset, like, dtype, padded):
        self.file, self.offset, self.shape, self.stride, self.dtype = file, offset, like.shape, like.stride(), dtype
        self.bytes = padded * dtype.itemsize
        self.shared = _over(memoryview(file.shared)[offset:offset + self.bytes], dtype)
        self._view = None

    def whole(self):
        """The tensor where all ranks write it."""
        return self.shared.as_strided(self.shape, self.stride)

    def view(self):
        """The tensor as the script sees it; the same one as long as something holds its memory."""
        memory = self._view and self._view()
        if memory is None:
            size = math.prod(self.shape) * self.dtype.itemsize  # its storage has no more: torch.save() writes storages
            memory = memoryview(self.file.private)[self.offset:self.offset + size]
            self._view = weakref.ref(memory)
        return _over(memory, self.dtype).as_strided(self.shape, self.stride)

    def is_held(self):
        """Whether a tensor of this rank lies in the view."""
        return self._view is not None and self._view() is not None

    def shows(self, t):
        """Whether `t` is the view."""
        memory = self._view and self._view()
        return (memory is not None and t.dtype is self.dtype and t.shape == self.shape and t.stride() == self.stride
                and (t.numel() == 0 or t.data_ptr() == _over(memory, self.dtype).data_ptr()))

    def refresh(self):
        """Drops what this rank has written to the view: it shows what all ranks share."""
        self.file.private.madvise(mmap.MADV_DONTNEED, self.offset, _paged(self.bytes))


def _over(memory, dtype):
    if not memory.nbytes:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype)


def _paged(size):
    return -(-size // PAGE) * PAGE


def regions(group, described, what, is_seen=True):
    """On every rank together: a Region for each (tensor with its shape and strides, dtype, padded elements), in one new file."""
    offsets, size = [], 0
    for _, dtype, padded in described:
        offsets.append(size)
        size += _paged(padded * dtype.itemsize)
    file = NodeFile(group, size, what)
    if is_seen:  # by the script, and its forked children
        _files.add(file)
    return [Region(file, offset, like, dtype, padded) for offset, (like, dtype, padded) in zip(offsets, described)]


def edited(regions):
    """Those regions whose view this rank has written to since it was refreshed: they have pages of its own."""
    found, flags = set(), {}
    for region in regions:
        if region.file not in flags:
            flags[region.file] = _own_pages(region.file)
        first = region.offset // PAGE
        if flags[region.file][first:first + _paged(region.bytes) // PAGE].any():
            found.add(region)
    return found


def _own_pages(file):
    """For each page of the private mapping, whether it is this rank's own (Documentation/admin-guide/mm/pagemap.rst)."""
    here, pages = ctypes.addressof(ctypes.c_char.from_buffer(file.private)), file.size // PAGE
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        entries = torch.frombuffer(bytearray(os.pread(pagemap.fileno(), 8 * pages, here // PAGE * 8)), dtype=torch.int64)
    present, swapped, of_file = entries < 0, (entries >> 62) & 1, (entries >> 61) & 1
    return present & (of_file == 0) | (swapped == 1)
