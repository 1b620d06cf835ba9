"""A rank of the collectives bench: rank.py OUTPUT ROUNDS MAX_BYTES. Two process groups of all ranks, one whose collectives
go through the node's memory and one of gloo's, take turns call by call; so does a copy of as many bytes, on all ranks
at the same time. Rank 0 writes the seconds of each call, by operation and bytes."""

import json
import sys
import time

import torch
import torch.distributed as dist

from castor.agent import core
from castor.agent.nodes import collectives

output, rounds, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
paths = {"node": dist.new_group()}
collectives.wanted = lambda: False  # what is made from here on is gloo's
paths["gloo"] = dist.new_group()
calls = core.node_calls()
dist.barrier(group=paths["gloo"])
assert core.node_calls() == calls, "gloo's group goes through the node's memory"
dist.barrier(group=paths["node"])
assert core.node_calls() == calls + 1, "the node's group is gloo's"


def operations(numel):
    """By name, and the copy. `numel` floats are the larger buffer of a rank; zeros, so that sums stay what they are."""
    part = torch.zeros(max(1, numel // world))
    whole, other = torch.zeros(part.numel() * world), torch.zeros(part.numel() * world)
    parts = list(other.chunk(world)) if rank == 0 else None
    return {
        "all_reduce": lambda group: dist.all_reduce(whole, group=group),
        "reduce_scatter": lambda group: dist.reduce_scatter_tensor(part, whole, group=group),
        "all_gather": lambda group: dist.all_gather_into_tensor(other, part, group=group),
        "broadcast": lambda group: dist.broadcast(whole, 0, group=group),
        "reduce": lambda group: dist.reduce(whole, 0, group=group),
        "gather": lambda group: dist.gather(part, parts, 0, group=group),
        "scatter": lambda group: dist.scatter(part, parts, 0, group=group),
        "all_to_all": lambda group: dist.all_to_all_single(other, whole, group=group),
    }, lambda: other.copy_(whole)


def timed(run, repeats):
    dist.barrier(group=paths["gloo"])
    begin = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - begin) / repeats


def take_turns(run, copy, repeats):
    times = {"gloo": [], "node": [], "copy": []}
    for group in paths.values():
        run(group)
    for _ in range(rounds):
        for path in ("gloo", "node"):
            times[path].append(timed(lambda: run(paths[path]), repeats))
        times["copy"].append(timed(copy, repeats))
    return times


results = {"barrier": {"0": take_turns(lambda group: dist.barrier(group=group), lambda: None, 20)}}
size = 1 << 10
while size <= limit:
    every, copy = operations(size // 4)
    repeats = 20 if size <= 1 << 18 else 5 if size <= 1 << 22 else 1
    for name, run in every.items():
        results.setdefault(name, {})[str(size)] = take_turns(run, copy, repeats)
    size *= 4
dist.barrier()
if rank == 0:
    with open(output, "w") as file:
        json.dump(results, file)
dist.destroy_process_group()
