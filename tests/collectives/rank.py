"""A rank of a job that run.py starts: `rank.py CASE FOLDER [NODE]...`, where NODE i is said to be that of rank i. It checks what it can by itself, and writes
rank-N.json: {"results": {what: digest or error}, "calls": calls that went through the node's memory}."""
import hashlib
import json
import os
import random
import signal
import sys
import time
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
case, folder = sys.argv[1:3]
nodes = [int(node) for node in sys.argv[3:]]  # of each rank, as if it were so
plain = "libcastor" not in os.environ.get("LD_PRELOAD", "")
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
results = {}
if nodes and not plain:
    from castor.agent import core as castor_core

    castor_core.node_identity = lambda: nodes[rank]

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
OTHERS = (torch.bool, torch.complex64)
OPS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "AVG")
SIZES = (0, 1, 63, 1000, 300001)
LARGE = (torch.float32, torch.bfloat16, torch.int8)


def keep(name, *tensors):
    digest = hashlib.sha256()
    for t in tensors:
        digest.update(t.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    assert name not in results, name
    results[name] = digest.hexdigest()


def attempt(name, run):
    """Keeps what `run` returns, or the kind of its error: some operations do not take some types."""
    try:
        keep(name, *run())
    except (RuntimeError, ValueError, TypeError) as error:
        results[name] = type(error).__name__


def values(numel, dtype, of=None):
    """Small whole numbers, so that no order of summation rounds; never zero, so that products tell."""
    of = rank if of is None else of
    return ((torch.arange(numel) * 7 + of * 3) % 5 + 1).to(dtype)


def node_calls():
    if plain:
        return 0
    from castor.agent import core

    return int(core.node_calls())


def through_memory(wanted=True):
    assert plain or (node_calls() > 0) == wanted, f"{node_calls()} calls went through the node's memory"


def case_values():
    dist.init_process_group("gloo")
    for dtype in FLOATS + INTEGERS + OTHERS:
        for numel in SIZES[: None if dtype in LARGE else -1]:
            def reduce(op):
                t = values(numel, dtype)
                dist.all_reduce(t, op=getattr(dist.ReduceOp, op))
                return [t]

            for op in OPS if numel < 2000 else ("SUM", "MAX"):
                attempt(f"allreduce {op} {dtype} {numel}", lambda: reduce(op))

            def broadcast():
                t = values(numel, dtype)
                dist.broadcast(t, src=world - 1)
                assert torch.equal(t, values(numel, dtype, world - 1))
                return [t]

            def gather():
                out = [torch.zeros(numel, dtype=dtype) for _ in range(world)]
                dist.all_gather(out, values(numel, dtype))
                assert all(torch.equal(t, values(numel, dtype, of)) for of, t in enumerate(out))
                return out

            def gather_into():
                out = torch.zeros(numel * world, dtype=dtype)
                dist.all_gather_into_tensor(out, values(numel, dtype))
                return [out]

            def scatter():
                out = torch.zeros(numel, dtype=dtype)
                dist.reduce_scatter_tensor(out, values(numel * world, dtype))
                return [out]

            def one_rank_gets():
                root = world - 1
                t, parts = values(numel, dtype), [torch.zeros(numel, dtype=dtype) for _ in range(world)]
                dist.reduce(t, root)
                dist.gather(values(numel, dtype), parts if rank == root else None, root)
                return [t, *parts] if rank == root else []

            def deal():
                mine, out = torch.zeros(numel, dtype=dtype), torch.zeros(numel * world, dtype=dtype)
                dist.scatter(mine, [values(numel, dtype, of) for of in range(world)] if rank == 0 else None)
                dist.all_to_all_single(out, values(numel * world, dtype))
                assert torch.equal(mine, values(numel, dtype))
                return [mine, out]

            attempt(f"reduce, gather {dtype} {numel}", one_rank_gets)
            attempt(f"scatter, alltoall {dtype} {numel}", deal)
            attempt(f"broadcast {dtype} {numel}", broadcast)
            attempt(f"allgather {dtype} {numel}", gather)
            attempt(f"allgather into {dtype} {numel}", gather_into)
            attempt(f"reduce_scatter {dtype} {numel}", scatter)
    # No barrier here: gloo's would throw the error of an operation before it that may still be ending.
    through_memory()


def case_shapes():
    """Tensors that are not plain, several at once, many in flight, and collectives that Castor leaves to gloo between."""
    dist.init_process_group("gloo")
    t = values(600, torch.float32).view(20, 30).t()
    dist.all_reduce(t)
    keep("transposed", t)
    for name, view in (("strided", lambda t: t[::2]), ("column", lambda t: t.view(30, 20)[:, 3])):
        def run():
            t = values(600, torch.float32)
            dist.all_reduce(view(t))
            return [t]

        attempt(name, run)
    ts = [values(n, torch.float32) for n in (1, 50, 0, 3000)]
    dist.all_reduce_coalesced(ts)
    keep("coalesced", *ts)
    ts = [values(100000 + i, torch.float64) for i in range(40)]
    works = [dist.all_reduce(t, async_op=True) if i % 3 else dist.broadcast(t, i % world, async_op=True) for i, t in enumerate(ts)]
    for i in sorted(range(len(works)), key=lambda i: (i * 17 + rank * 5) % len(works)):
        works[i].wait()
    keep("in flight", *ts)
    ts = [values(10, torch.int64) for _ in range(500)]
    works = [dist.all_reduce(t, async_op=True) for t in ts]
    if rank == 0:
        time.sleep(0.3)
    for work in reversed(works):
        work.wait()
    keep("small in flight", *ts)
    total = torch.tensor([rank])
    dist.all_reduce(total)
    out = [None] * world
    dist.all_gather_object(out, {"rank": rank, "text": "x" * (1000 * rank)})
    assert [o["rank"] for o in out] == list(range(world))
    t = values(7, torch.float32)
    dist.reduce(t, 0)
    keep("reduce", t if rank == 0 else torch.zeros(1))
    parts = [torch.zeros(5) for _ in range(world)] if rank == 0 else None
    dist.gather(values(5, torch.float32), parts)
    mine = torch.zeros(5)
    dist.scatter(mine, parts)
    keep("scatter", mine)
    out = torch.zeros(world * 4)
    dist.all_to_all_single(out, values(world * 4, torch.float32))
    keep("alltoall", out)
    out = torch.zeros(sum(range(1, world + 1)))
    dist.all_to_all_single(out, values(world * (rank + 1), torch.float32), list(range(1, world + 1)), [rank + 1] * world)
    keep("alltoall in unequal parts", out)
    t = torch.distributed._functional_collectives.all_reduce(values(1000, torch.float32), "sum", dist.group.WORLD)
    keep("functional", t + 0)
    if rank == 0:
        dist.send(values(9, torch.float32), 1)
    elif rank == 1:
        t = torch.zeros(9)
        dist.recv(t, 0)
        keep("recv", t)
    dist.monitored_barrier()
    sparse = torch.sparse_coo_tensor([[rank, rank + 1]], [1.0, 2.0], (world + 1,))
    dist.all_reduce(sparse)
    keep("sparse", sparse.to_dense())
    through_memory()


def case_groups():
    dist.init_process_group("gloo")
    for round in range(3):
        members = [[0, 1], list(range(world)), [0, world - 1], [world - 2, world - 1], [rank for rank in range(0, world, 2)]]
        groups = [dist.new_group(m) for m in members]
        works = []
        for i, (m, group) in enumerate(zip(members, groups)):
            if rank in m:
                t = values(3000 * (i + 1), torch.float32)
                works.append((dist.all_reduce(t, group=group, async_op=True), t, m))
        for work, t, m in reversed(works):
            work.wait()
            assert torch.equal(t, sum(values(t.numel(), torch.float32, of) for of in m))
            keep(f"{round} {m} {t.numel()}", t)
        for m, group in zip(members, groups):
            if rank in m:
                dist.barrier(group=group)
                dist.destroy_process_group(group)
    before = node_calls()
    dist.barrier()
    dist.destroy_process_group()
    # Another store: gloo itself fails now and then on one that still has the addresses of the last group.
    dist.init_process_group("gloo", init_method=f"file://{folder}/anew", rank=rank, world_size=world)
    t = values(5000, torch.float32)
    dist.all_reduce(t)
    keep("made anew", t)
    assert plain or node_calls() > before
    through_memory()


def case_order():
    """Sums of numbers that round: the same on all ranks, in rank order."""
    dist.init_process_group("gloo")
    for numel in (5, 30000, 400001, 1500000):
        every = [torch.randn(numel, generator=torch.Generator().manual_seed(numel + of)) for of in range(world)]
        t, total = every[rank].clone(), every[0].clone()
        dist.all_reduce(t)
        for other in every[1:]:
            total += other
        assert torch.equal(t, total), f"{(t != total).sum()} of {numel} differ"
    through_memory()


def case_numbers():
    """Any bits at all: what the library's own loops make of them is what gloo's functions do, to the last bit. Where both
    numbers are NaN the result is either; the least of a number and a NaN depends on which is first."""
    dist.init_process_group("gloo")
    for dtype in FLOATS + INTEGERS:
        for numel in (1003, 200001):
            random_bits = torch.Generator().manual_seed(numel + rank)
            bits = torch.randint(0, 256, (numel * dtype.itemsize,), dtype=torch.uint8, generator=random_bits).view(dtype)
            if dtype.is_floating_point:
                bits[rank::2] = torch.randn(bits[rank::2].numel(), generator=random_bits).to(dtype)

            def reduce(op):
                t = bits.clone()
                dist.all_reduce(t, op=getattr(dist.ReduceOp, op))
                return [t]

            for op in ("SUM", "PRODUCT") if dtype.is_floating_point else OPS[:-1]:
                attempt(f"{op} {dtype} {numel}", lambda: reduce(op))
    through_memory()


class Sequence:
    """Operations drawn alike on all ranks, each compared with what arithmetic demands, in flight as the ranks like."""

    DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.int64)
    KINDS = ("all_reduce", "all_reduce", "broadcast", "all_gather", "reduce", "gather", "scatter", "alltoall", "reduce_scatter")

    def __init__(self, seed):
        self.alike, self.own = random.Random(seed), random.Random(seed * 100 + rank)
        members = [list(range(world)), list(range(world))] + [[0, world - 1]] * (world > 2) + [list(range(1, world))] * (world > 2)
        self.groups = [(m, dist.new_group(m)) for m in members]
        self.pending = []

    def draw(self):
        members, group = self.alike.choice(self.groups)
        kind, dtype = self.alike.choice(self.KINDS), self.alike.choice(self.DTYPES)
        numel = self.alike.choice((1, 2, 100, 5000, 40000, 600000))
        numel = self.alike.randrange(max(1, numel // 2), numel + 1)
        root, asynchronous, salt = self.alike.choice(members), self.alike.random() < 0.6, self.alike.randrange(1000)
        op = self.alike.choice(("SUM", "MAX", "MIN"))
        if rank in members:
            self.run(members, group, kind, dtype, numel, root, asynchronous, salt, op)

    def run(self, members, group, kind, dtype, numel, root, asynchronous, salt, op):
        size, here = len(members), members.index(rank)
        how = {"group": group, "async_op": asynchronous}

        def data(of, count):
            return values(count, dtype, of + salt)

        def reduced(count):
            every = torch.stack([data(of, count) for of in members])
            return {"SUM": every.sum(0), "MAX": every.amax(0), "MIN": every.amin(0)}[op].to(dtype)

        mine, expected = data(rank, numel), None
        if kind == "all_reduce":
            out, expected = mine, [reduced(numel)]
            work = dist.all_reduce(out, op=getattr(dist.ReduceOp, op), **how)
        elif kind == "reduce":
            out, expected = mine, [reduced(numel)] if rank == root else None
            work = dist.reduce(out, root, op=getattr(dist.ReduceOp, op), **how)
        elif kind == "broadcast":
            out, expected = mine, [data(root, numel)]
            work = dist.broadcast(out, root, **how)
        elif kind == "all_gather":
            out, expected = [torch.zeros_like(mine) for _ in members], [data(of, numel) for of in members]
            work = dist.all_gather(out, mine, **how)
        elif kind == "gather":
            out = [torch.zeros_like(mine) for _ in members] if rank == root else None
            expected = [data(of, numel) for of in members] if rank == root else None
            work = dist.gather(mine, out, root, **how)
        elif kind == "scatter":
            out, expected = torch.zeros_like(mine), [data(root + 7 * here, numel)]
            parts = [data(root + 7 * i, numel) for i in range(size)] if rank == root else None
            work = dist.scatter(out, parts, root, **how)
        elif kind == "alltoall":
            out = torch.zeros(numel * size, dtype=dtype)
            expected = [torch.cat([data(of, numel * size)[here * numel :][:numel] for of in members])]
            work = dist.all_to_all_single(out, data(rank, numel * size), **how)
        else:
            out, expected = torch.zeros_like(mine), [reduced(numel * size)[here * numel :][:numel]]
            work = dist.reduce_scatter_tensor(out, data(rank, numel * size), op=getattr(dist.ReduceOp, op), **how)
        check = (f"{kind} {op} {dtype} {numel} of {members}", out if isinstance(out, list) else [out], expected)
        if asynchronous:
            self.pending.append((work, check))
        else:
            self.check(*check)

    def check(self, what, out, expected):
        for got, wanted in zip(out if expected else [], expected or []):
            assert torch.equal(got, wanted), what

    def settle(self, left):
        """Waits for works in flight, in an order of this rank's own."""
        while len(self.pending) > left:
            work, check = self.pending.pop(self.own.randrange(len(self.pending)))
            work.wait()
            self.check(*check)


def case_sequence():
    dist.init_process_group("gloo")
    for seed in range(3):
        sequence = Sequence(seed)
        for _ in range(100):
            sequence.draw()
            if sequence.own.random() < 0.1:
                time.sleep(sequence.own.random() * 0.02)
            if sequence.own.random() < 0.2:
                sequence.settle(sequence.own.randrange(10))
        sequence.settle(0)
    keep("done", torch.zeros(1))
    through_memory()


def case_ddp():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(300, 500), torch.nn.ReLU(), torch.nn.Linear(500, 300))
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(2 + rank)
    for step in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(16, 300)).square().mean()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        keep(f"loss {step}", mean)
    keep("parameters", *[p.detach() for p in model.parameters()])
    through_memory()


def case_fork():
    dist.init_process_group("gloo")
    t = values(100000, torch.float32)
    dist.all_reduce(t)
    child = os.fork()
    if child == 0:
        os._exit(7)
    for i in range(20):
        t = values(100000 + i, torch.float32)
        dist.all_reduce(t)
        keep(f"after {i}", t)
    assert os.waitpid(child, 0)[1] == 7 << 8
    loader = torch.utils.data.DataLoader(range(20), batch_size=2, num_workers=2)
    for batch in loader:
        total = batch.sum()
        dist.all_reduce(total)
    keep("total", total)
    through_memory()


def case_killed():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's, to those who are left
    t = torch.ones(10_000_000)
    dist.all_reduce(t)
    if rank == 1:
        dist.all_reduce(torch.ones(10_000_000), async_op=True)
        time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        for _ in range(1000):
            dist.all_reduce(t)
        message = "nothing"
    except RuntimeError as error:
        message = str(error)
    results["seconds"], results["message"] = time.monotonic() - begin, message
    through_memory()


def case_timeout():
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    group = dist.new_group(timeout=timedelta(seconds=2))
    if rank != 1:
        try:
            dist.all_reduce(torch.ones(1000), group=group)
            results["message"] = "nothing"
        except RuntimeError as error:
            results["message"] = str(error)
    dist.barrier()
    through_memory()


def case_left():
    """A rank that has done its part of everything and is gone."""
    dist.init_process_group("gloo")
    group = dist.new_group()
    t = values(1000, torch.float32)
    dist.broadcast(t, 0, group=group)
    if rank == 0:
        dist.destroy_process_group(group)
    dist.barrier()
    keep("broadcast", t)
    through_memory()


def without(replace):
    """One rank cannot take part: all stay with gloo."""
    from castor.agent import core
    from castor.agent.nodes import collectives

    collectives._PATIENCE = timedelta(seconds=3)
    if rank == 1:
        replace(collectives, core)
    dist.init_process_group("gloo")
    for numel in (1, 300000):
        t = values(numel, torch.float32)
        dist.all_reduce(t)
        assert torch.equal(t, sum(values(numel, torch.float32, of) for of in range(world)))
    through_memory(False)


def case_other_node():
    without(lambda collectives, core: setattr(collectives, "_place", lambda: "another"))


def case_other_layout():
    without(lambda collectives, core: setattr(collectives, "_test", lambda: False))


def case_no_memory():
    def fail(*arguments):
        raise core_of.Error("no memory")

    def replace(collectives, core):
        global core_of
        core_of = core
        core.node_open = fail

    without(replace)


def case_absent():
    """One rank does not even answer."""
    without(lambda collectives, core: setattr(collectives.Making, "made", lambda self: core.contexts_unwatch()))


def case_none():
    dist.init_process_group("gloo")
    t = values(100000, torch.float32)
    dist.all_reduce(t)
    keep("allreduce", t)
    through_memory(False)


globals()["case_" + case]()
with open(os.path.join(folder, f"rank-{rank}.json"), "w") as file:
    json.dump({"results": results, "calls": node_calls()}, file)
if case not in ("killed", "timeout"):
    dist.barrier()
    dist.destroy_process_group()
