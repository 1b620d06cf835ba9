"""One rank that calls NCCL itself, without PyTorch: nccl_rank.py RANK RANKS FOLDER [untold]. The ranks use their communicators in
different orders, so that they number them differently."""
import ctypes
import os
import sys
import time

rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
COUNT, FLOAT, SUM, NONBLOCKING = 1000, 7, 0, 1  # as in the headers of CUDA and NCCL


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


def library(name, *functions):
    loaded = ctypes.CDLL(name)
    return [getattr(loaded, function) for function in functions]


set_device, malloc, stream_create, device_synchronize = library(
    "libcudart.so.13", "cudaSetDevice", "cudaMalloc", "cudaStreamCreateWithFlags", "cudaDeviceSynchronize")
unique_id, init_rank, split, all_reduce = library(
    "libnccl.so.2", "ncclGetUniqueId", "ncclCommInitRank", "ncclCommSplit", "ncclAllReduce")
init_rank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, UniqueId, ctypes.c_int]


def succeed(status):
    assert status == 0, status


def shared_id(name):
    """The unique id that rank 0 makes."""
    path, own = os.path.join(folder, name), UniqueId()
    if rank == 0:
        succeed(unique_id(ctypes.byref(own)))
        with open(path + ".part", "wb") as file:
            file.write(bytes(own))
        os.rename(path + ".part", path)
    while not os.path.exists(path):
        time.sleep(0.02)
    with open(path, "rb") as file:
        return UniqueId.from_buffer_copy(file.read())


def communicator(name):
    comm = ctypes.c_void_p()
    succeed(init_rank(ctypes.byref(comm), ranks, shared_id(name), rank))
    return comm


def part(whole, color):
    comm = ctypes.c_void_p()
    succeed(split(whole, color, rank, ctypes.byref(comm), None))
    return comm


succeed(set_device(rank))
if len(sys.argv) == 4:
    ctypes.CDLL(None).castor_rank_set(rank)  # which a process of PyTorch's need not do
memory = ctypes.c_void_p()
succeed(malloc(ctypes.byref(memory), 8 * COUNT))
first, second = communicator("first"), communicator("second")
halves = part(first, rank % 2)
again = part(first, rank % 2)  # the same ranks once more: another communicator
streams = [ctypes.c_void_p() for _ in range(4)]
for stream in streams:
    succeed(stream_create(ctypes.byref(stream), NONBLOCKING))

# Each communicator has a stream of its own: their order may differ between the ranks.
uses = list(zip((first, second, halves, again), (COUNT, 2 * COUNT, COUNT, COUNT), streams))
for comm, count, stream in uses if rank % 2 == 0 else reversed(uses):
    for _ in range(3):
        succeed(all_reduce(memory, memory, ctypes.c_size_t(count), FLOAT, SUM, comm, stream))
succeed(device_synchronize())
print(" ".join(hex(stream.value) for stream in streams), flush=True)
