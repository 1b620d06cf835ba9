"""torch.distributed's nccl backend on simulated devices, one rank; started by run.py, which starts both."""
import ctypes
import os

import torch
import torch.distributed as dist

import inside

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ALL_REDUCE, BROADCAST, SEND, RECEIVE = 0, 2, 8, 9  # enum task_kind of nccl/nccl_sim.h
device = torch.device("cuda", RANK)


def tally(kind):
    values = (ctypes.c_uint64 * 2)()
    inside.engine.sim_nccl_tally(kind, values)
    return values[0], values[1]


def of_rank(rank, *shape, dtype=torch.float32):
    """The numbers that a rank contributes, on the host."""
    generator = torch.Generator().manual_seed(rank)
    if dtype.is_floating_point:
        return torch.randn(*shape, generator=generator).to(dtype)
    return torch.randint(1, 50, shape, generator=generator).to(dtype)


def everyone(*shape, dtype=torch.float32):
    return [of_rank(rank, *shape, dtype=dtype) for rank in range(RANKS)]


def mine(*shape, dtype=torch.float32):
    return of_rank(RANK, *shape, dtype=dtype).to(device)


def same(found, expected):
    found = found.cpu()
    assert torch.equal(found, expected), (found.flatten()[:4], expected.flatten()[:4])


def test_all_reduce_types():
    for dtype in (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bfloat16, torch.float16):
        values = mine(1000, dtype=dtype)
        dist.all_reduce(values)
        wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
        same(values, torch.stack(everyone(1000, dtype=dtype)).to(wide).sum(0).to(dtype))


def test_all_reduce_operations():
    stacked = torch.stack(everyone(777))
    for op, expected in ((dist.ReduceOp.PRODUCT, stacked.prod(0)), (dist.ReduceOp.MAX, stacked.max(0).values),
                         (dist.ReduceOp.MIN, stacked.min(0).values), (dist.ReduceOp.AVG, stacked.sum(0) / RANKS)):
        values = mine(777)
        dist.all_reduce(values, op=op)
        same(values, expected)
    values = mine(777)
    dist.all_reduce(values, op=dist._make_nccl_premul_sum(0.5))
    same(values, (stacked * 0.5).sum(0))


def test_large_all_reduce():
    values = mine(3_000_001)  # many pieces, the last one short
    dist.all_reduce(values)
    same(values, torch.stack(everyone(3_000_001)).sum(0))


def test_broadcast_and_reduce():
    values = mine(5000)
    dist.broadcast(values, src=1)
    same(values, of_rank(1, 5000))
    values = mine(5000)
    dist.reduce(values, dst=0)
    if RANK == 0:
        same(values, torch.stack(everyone(5000)).sum(0))


def test_gathers_and_scatters():
    gathered = torch.empty(RANKS * 300, device=device)
    dist.all_gather_into_tensor(gathered, mine(300))
    same(gathered, torch.cat(everyone(300)))
    part = torch.empty(150, device=device)
    dist.reduce_scatter_tensor(part, mine(RANKS * 150))
    same(part, torch.stack(everyone(RANKS * 150)).sum(0)[RANK * 150:(RANK + 1) * 150])
    exchanged = torch.empty(RANKS * 20, device=device)
    dist.all_to_all_single(exchanged, mine(RANKS * 20))
    same(exchanged, torch.cat([values[RANK * 20:(RANK + 1) * 20] for values in everyone(RANKS * 20)]))


def test_send_and_receive():
    there = torch.empty(200_000, device=device)
    if RANK == 0:
        dist.send(mine(200_000), dst=1)
        dist.recv(there, src=1)
    else:
        dist.recv(there, src=0)
        dist.send(mine(200_000), dst=0)
    same(there, of_rank(1 - RANK, 200_000))


def test_transfers_both_ways_at_once():
    there = torch.empty(100_000, device=device)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, mine(100_000), 1 - RANK),
                                    dist.P2POp(dist.irecv, there, 1 - RANK)])
    for work in works:
        work.wait()
    same(there, of_rank(1 - RANK, 100_000))


def test_order_of_streams():
    values = mine(100)
    gate = inside.Gate(torch.cuda.current_stream())
    work = dist.all_reduce(values, async_op=True)
    assert not work.is_completed(), "behind what the current stream was given"
    work.wait()  # orders the current stream behind it
    gate.open()
    same(values, torch.stack(everyone(100)).sum(0))


def test_subgroups():
    for rank in range(RANKS):
        group = dist.new_group([rank])
        if rank == RANK:
            values = mine(10)
            dist.all_reduce(values, group=group)
            same(values, of_rank(RANK, 10))
    split = dist.split_group(split_ranks=[list(range(RANKS))])
    values = mine(10)
    dist.all_reduce(values, group=split)
    same(values, torch.stack(everyone(10)).sum(0))


def test_graph_of_a_collective():
    values, graph = torch.empty(500, device=device), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(values)
    for _ in range(2):
        values.copy_(of_rank(RANK, 500))
        graph.replay()
        torch.cuda.synchronize()
        same(values, torch.stack(everyone(500)).sum(0))


def test_data_parallel():
    model = torch.nn.Linear(256, 64).to(device)
    broadcasts = tally(BROADCAST)
    parallel = torch.nn.parallel.DistributedDataParallel(model, device_ids=[RANK])
    torch.cuda.synchronize()
    assert tally(BROADCAST)[0] > broadcasts[0], "the first rank's parameters"
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    bytes_of_gradients = sum(p.numel() * 4 for p in model.parameters())
    for step in range(3):
        before = tally(ALL_REDUCE)
        optimizer.zero_grad()
        parallel(torch.randn(8, 256).to(device)).sum().backward()
        optimizer.step()
        torch.cuda.synchronize()
        after = tally(ALL_REDUCE)
        assert after[1] - before[1] == bytes_of_gradients, (step, before, after)
        with parallel.no_sync():
            parallel(torch.randn(8, 256).to(device)).sum().backward()
        torch.cuda.synchronize()
        assert tally(ALL_REDUCE) == after, "no collective under no_sync"


if __name__ == "__main__":
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    try:
        inside.main(globals())
    finally:
        dist.destroy_process_group()
