"""A rank that calls every collective of gloo on small tensors, checks each result by arithmetic, and writes what the
trace must hold: {operation: [calls, bytes, elements, dtype]} of the script's own group.

    collective_rank.py FOLDER
"""
import gc
import json
import os
import sys
import warnings

import torch
import torch.distributed as dist

warnings.filterwarnings("ignore")
DTYPES = {torch.uint8: 0, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
expected = {}


def count(operation, *tensors):
    row = expected.setdefault(operation, [0, 0, 0, -1])
    row[0] += 1
    row[1] += sum(t.numel() * t.element_size() for t in tensors)
    row[2] += sum(t.numel() for t in tensors)
    row[3] = DTYPES[tensors[0].dtype] if tensors else -1


def check(name, *results):
    """Each result is (tensor, the value of all its elements)."""
    for tensor, value in results:
        assert torch.equal(tensor, torch.full_like(tensor, value)), f"rank {rank}: {name} gave {tensor}, not {value}"


def mine(numel, dtype=torch.float32, of=None):
    return torch.full((numel,), (rank if of is None else of) + 1, dtype=dtype)


total = world * (world + 1) // 2

t = mine(1000)
dist.all_reduce(t)
count("allreduce", t)
check("all_reduce", (t, total))

works = []
for dtype in (torch.float64, torch.int32, torch.float64):
    t = mine(33, dtype)
    works.append((dist.all_reduce(t, async_op=True), t))
    count("allreduce", t)
for work, t in works:
    work.wait()
    check("asynchronous all_reduce", (t, total))

ts = [mine(10), mine(20)]
dist.all_reduce_coalesced(ts)
count("allreduce_coalesced", *ts)
check("all_reduce_coalesced", *((t, total) for t in ts))

i = torch.tensor([[0, 2]])
sparse = torch.sparse_coo_tensor(i, mine(2), (4,))
dist.all_reduce(sparse)
count("allreduce", torch.zeros(4))  # a sparse tensor counts with its dense size
check("sparse all_reduce", (sparse.coalesce().values(), total))

t = mine(7, torch.int64)
dist.broadcast(t, 0)
count("broadcast", t)
check("broadcast", (t, 1))

t = mine(9)
dist.reduce(t, 0)
count("reduce", t)
if rank == 0:
    check("reduce", (t, total))

out = [mine(5, of=-1) for _ in range(world)]
t = mine(5)
dist.all_gather(out, t)
count("allgather", t)
check("all_gather", *((o, r + 1) for r, o in enumerate(out)))

flat = torch.zeros(6 * world, dtype=torch.bfloat16)
t = mine(6, torch.bfloat16)
dist.all_gather_into_tensor(flat, t)
count("_allgather_base", t)
check("all_gather_into_tensor", *((p, r + 1) for r, p in enumerate(flat.chunk(world))))

out = [[torch.zeros(4), torch.zeros(3)] for _ in range(world)]
ts = [mine(4), mine(3)]
dist.all_gather_coalesced(out, ts)
count("allgather_coalesced", *ts)
check("all_gather_coalesced", *((o, r + 1) for r, os_ in enumerate(out) for o in os_))

flats, ts = [torch.zeros(4 * world), torch.zeros(2 * world)], [mine(4), mine(2)]
dist.group.WORLD.allgather_into_tensor_coalesced(flats, ts).wait()
count("allgather_into_tensor_coalesced", *ts)
check("allgather_into_tensor_coalesced", *((p, r + 1) for f in flats for r, p in enumerate(f.chunk(world))))

out = [torch.zeros(8) for _ in range(world)] if rank == 0 else None
t = mine(8)
dist.gather(t, out, 0)
count("gather", t)
check("gather", *((o, r + 1) for r, o in enumerate(out or [])))

t = torch.zeros(11)
dist.scatter(t, [mine(11, of=r) for r in range(world)] if rank == 0 else None, 0)
count("scatter", t)
check("scatter", (t, rank + 1))

t, parts = torch.zeros(3), [mine(3) for _ in range(world)]
dist.reduce_scatter(t, parts)
count("reduce_scatter", *parts)
check("reduce_scatter", (t, total))

t, flat = torch.zeros(5), mine(5 * world)
dist.reduce_scatter_tensor(t, flat)
count("_reduce_scatter_base", flat)
check("reduce_scatter_tensor", (t, total))

ts, flats = [torch.zeros(2), torch.zeros(4)], [mine(2 * world), mine(4 * world)]
dist.group.WORLD.reduce_scatter_tensor_coalesced(ts, flats).wait()
count("reduce_scatter_tensor_coalesced", *flats)
check("reduce_scatter_tensor_coalesced", *((t, total) for t in ts))

out, t = torch.zeros(2 * world), mine(2 * world)
dist.all_to_all_single(out, t)
count("alltoall_base", t)
check("all_to_all_single", *((p, r + 1) for r, p in enumerate(out.chunk(world))))

# Uneven parts: rank r sends r + 1 elements to each.
out, t = torch.zeros(total), mine((rank + 1) * world)
dist.all_to_all_single(out, t, [r + 1 for r in range(world)], [rank + 1] * world)
count("alltoall_base", t)
check("uneven all_to_all_single", *((p, r + 1) for r, p in enumerate(out.split([r + 1 for r in range(world)]))))

# Lists of tensors: later versions of gloo's group have it.
out, parts = [torch.zeros(2) for _ in range(world)], [mine(2) for _ in range(world)]
try:
    dist.all_to_all(out, parts)
except RuntimeError as error:
    assert "does not support alltoall" in str(error), error
else:
    count("alltoall", *parts)
    check("all_to_all", *((o, r + 1) for r, o in enumerate(out)))

t = mine(13) if rank == 0 else torch.zeros(13)
if rank == 0:
    dist.send(t, 1, tag=3)
    count("send", t)
elif rank == 1:
    dist.recv(t, 0, tag=3)
    count("recv", t)
    check("recv", (t, 1))
t = mine(17) if rank == 0 else torch.zeros(17)
if rank == 0:
    dist.send(t, 1)
    count("send", t)
elif rank == 1:
    assert dist.recv(t) == 0
    count("recvAnysource", t)
    check("recv from any rank", (t, 1))

dist.barrier()
count("barrier")
dist.monitored_barrier(wait_all_ranks=True)
count("monitoredBarrier")

# A collective that fails throws a C++ exception through the wrapper; the next one is counted again, not taken for a
# part of it.
for _ in range(3):
    try:
        dist.all_gather([torch.zeros(3)] * world, torch.zeros(4))
        raise SystemExit("sizes that do not match were accepted")
    except RuntimeError as error:
        assert "invalid tensor size" in str(error), error


def deeper(depth):
    if depth:
        return deeper(depth - 1)
    t = mine(21)
    dist.all_reduce(t)
    count("allreduce", t)
    check("all_reduce after an error", (t, total))


deeper(20)

# A second group has another number.
half = dist.new_group([0, 1], backend="gloo")
if rank < 2:
    t = mine(19)
    dist.all_reduce(t, group=half)
    count("allreduce", t)
    check("all_reduce of a second group", (t, 3))
dist.barrier()
count("barrier")

with open(os.path.join(sys.argv[1], f"rank-{rank}.json"), "w") as file:
    json.dump({"pid": os.getpid(), "expected": expected}, file)
# A group that something still refers to keeps its threads beyond this call, and PyTorch aborts a process whose interpreter ends before them.
del half, work, works
gc.collect()
dist.destroy_process_group()
