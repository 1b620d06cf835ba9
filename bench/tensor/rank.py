"""A rank of the tensor bench: rank.py OUTPUT ROUNDS. Sharded linears and redistributions by castor.tensor and by PyTorch's DTensor, which take
turns in the same process. Before, results and gradients of both must be equal bit for bit. Rank 0 writes the seconds of each."""

import json
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import castor
from castor.tensor import ColoParameter, ColoTensor, ColoTensorSpec, ComputePattern, ComputeSpec, ProcessGroup, ReplicaSpec, ShardSpec

ROWS, SIZES = 256, (256, 2048)
REPEATS = {256: 20, 2048: 3}

output, rounds = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
castor.launch_from_torch(verbose=False)
rank, world = dist.get_rank(), dist.get_world_size()
group, mesh = ProcessGroup(tp_degree=world), init_device_mesh("cpu", (world,))


def block(whole, dim):
    return whole.chunk(world, dim)[rank].contiguous()


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + sum(shape)))


def spec_of(dim):
    return ReplicaSpec() if dim is None else ShardSpec([dim], [world])


def placement_of(dim):
    return Replicate() if dim is None else Shard(dim)


def linear(size, dim):
    """x of ROWS rows through a weight that is divided at `dim`: outputs (0), which stay divided, or inputs (1), with a whole result.
    [forward and backward of Castor, of DTensor]; each gives its result and both gradients, as this rank's blocks."""
    values, weight, gradient = random(ROWS, size), random(size, size), random(ROWS, size) / size
    column = dim == 0
    x, y = ((values if column else block(values, 1)).clone().requires_grad_() for _ in range(2))
    gradient = block(gradient, 1) if column else gradient
    ours = ColoParameter(block(weight, dim), spec=ColoTensorSpec(group, ShardSpec([dim], [world]), ComputeSpec(ComputePattern.TP1D)))
    ours.compute_spec.set_output_replicate(not column)
    theirs = torch.nn.Parameter(DTensor.from_local(block(weight, dim), mesh, [Shard(dim)], run_check=False))
    lies, placed = spec_of(None if column else -1), placement_of(None if column else 1)
    placed_gradient = DTensor.from_local(gradient, mesh, [Shard(1) if column else Replicate()], run_check=False)

    def castors():
        x.grad = ours.grad = None
        result = F.linear(x if column else ColoTensor.from_torch_tensor(x, ColoTensorSpec(group, lies)), ours)
        result.backward(gradient)
        return result, x.grad, ours.grad

    def dtensors():
        y.grad = theirs.grad = None
        result = F.linear(DTensor.from_local(y, mesh, [placed], run_check=False), theirs)
        result = result if column else result.redistribute(mesh, [Replicate()])
        result.backward(placed_gradient)
        return result, y.grad, theirs.grad

    return castors, dtensors


def redistribution(size, old, new, backward):
    """A square tensor of `size` from blocks along `old` to blocks along `new` (None: whole on all ranks), with or without the gradient's way back."""
    whole, gradient = random(size, size), random(size, size) + 1
    local, gradient = (one if dim is None else block(one, dim) for one, dim in ((whole, old), (gradient, new)))
    x, y = (local.clone().requires_grad_(backward) for _ in range(2))
    spec, placed = ColoTensorSpec(group, spec_of(old)), [placement_of(old)]
    target, placed_target = spec_of(new), [placement_of(new)]
    placed_gradient = DTensor.from_local(gradient, mesh, placed_target, run_check=False)
    ours, theirs = ColoTensor.from_torch_tensor(x, spec), DTensor.from_local(y, mesh, placed, run_check=False)
    if not backward:
        return lambda: (ours.redistribute(target),), lambda: (theirs.redistribute(mesh, placed_target),)

    def castors():
        x.grad = None
        result = ColoTensor.from_torch_tensor(x, spec).redistribute(target)
        result.backward(gradient)
        return result, x.grad

    def dtensors():
        y.grad = None
        result = DTensor.from_local(y, mesh, placed, run_check=False).redistribute(mesh, placed_target)
        result.backward(placed_gradient)
        return result, y.grad

    return castors, dtensors


def local(tensor):
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor.as_subclass(torch.Tensor)


def timed(run, repeats):
    """Seconds of a call, on the slowest rank."""
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(repeats):
        run()
    seconds = torch.tensor((time.perf_counter() - begin) / repeats, dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.item()


def take_turns(name, pair, repeats):
    systems = dict(zip(("castor", "dtensor"), pair))
    for got, expected in zip(*(run() for run in pair), strict=True):
        assert torch.equal(local(got), local(expected)), f"{name}: results differ"
    times = {one: [] for one in systems}
    for number in range(-1, rounds):  # one to warm up
        for one in list(systems)[:: 1 if number % 2 else -1]:
            seconds = timed(systems[one], repeats)
            if number >= 0:
                times[one].append(seconds)
    return times


results = {}
for size in SIZES:
    cases = {"linear, columns": linear(size, 0), "linear, rows": linear(size, 1)}
    for words, old, new in (("shard to replicate", 0, None), ("shard to shard", 0, 1), ("replicate to shard", None, 0)):
        cases[words] = redistribution(size, old, new, False)
        cases[f"{words}, and back"] = redistribution(size, old, new, True)
    for name, pair in cases.items():
        results.setdefault(name, {})[str(size)] = take_turns(f"{name}, {size}", pair, REPEATS[size])
if rank == 0:
    with open(output, "w", encoding="ascii") as file:
        json.dump(results, file)
dist.destroy_process_group()
