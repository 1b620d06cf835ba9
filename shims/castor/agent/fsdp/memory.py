"""Files in memory that all ranks of a node map, and whole tensors in them.

A file is mapped twice: `shared`, where what is written reaches every rank, and `private`, where the script sees it. A page that the
script writes becomes its own rank's, until refresh() drops it. Only between two barriers is anything written to `shared`, so every
rank reads whole tensors at any other time without another rank's help."""
import math
import mmap
import os
import weakref

import torch

from .. import core

PAGE = mmap.PAGESIZE


class NodeFile:
    """On every rank of the group together: a file of `size` bytes, zero at first."""

    def __init__(self, group, size, what):
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


def regions(group, described, what):
    """On every rank together: a Region for each (tensor with its shape and strides, dtype, padded elements), in one new file."""
    offsets, size = [], 0
    for _, dtype, padded in described:
        offsets.append(size)
        size += _paged(padded * dtype.itemsize)
    file = NodeFile(group, size, what)
    return [Region(file, offset, like, dtype, padded) for offset, (like, dtype, padded) in zip(offsets, described)]
