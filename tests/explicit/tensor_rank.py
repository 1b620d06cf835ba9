"""castor.tensor on each rank: groups, specifications, conversions, hooks: see test_tensor.py for what must be found."""
import copy
import io
import itertools
import pickle

import torch
import torch.distributed as dist
import torch.nn.functional as F

from castor.tensor import (ColoParameter, ColoParamOpHook, ColoParamOpHookManager, ColoTensor, ColoTensorSpec, ComputePattern, ComputeSpec,
                           DistPlacementPattern, DistSpecManager, ProcessGroup, ReplicaSpec, ShardSpec, TensorType, named_params_with_colotensor)
from found import end, found, launch, raised

found("before launch", raised(RuntimeError, ProcessGroup))
launch()
rank, world = dist.get_rank(), dist.get_world_size()


def shown(group):
    return [group.rank(), group.ranks_in_group(), group.world_size(), group.tp_world_size(), group.dp_world_size(), group.tp_rank_list(),
            group.dp_rank_list(), group.tp_local_rank(), group.dp_local_rank()]


# ---- groups
tensor_group = ProcessGroup(tp_degree=world)
given = [world - 1, *range(world - 1)]
found("groups", {"default": shown(ProcessGroup()), "tp": shown(ProcessGroup(rank, given, tp_degree=world)), "short names": shown(ProcessGroup(tp=1, dp=world))})
found("unsorted ranks are the caller's", given)
first = ProcessGroup(ranks=[0], tp_degree=1)
found("outside", shown(first)[5:] if rank else [None] * 4)
found("equal", [ProcessGroup() == ProcessGroup(), ProcessGroup() == tensor_group, ProcessGroup().dp_process_group() is ProcessGroup(dp=world).dp_process_group(),
                hash(ProcessGroup()) == hash(ProcessGroup())])
group = ProcessGroup(tp_degree=world)
before = [group.has_cpu_groups, raised(AssertionError, group.cpu_tp_process_group)]
group.set_cpu_groups()
found("cpu groups", [*before, group.has_cpu_groups, dist.get_backend(group.cpu_tp_process_group()), dist.get_world_size(group.cpu_dp_process_group())])
found("bad groups", [raised(ValueError, ProcessGroup, rank + 1), raised(ValueError, ProcessGroup, tp_degree=world + 1), raised(ValueError, ProcessGroup, ranks=[0, 0]),
                     raised(ValueError, ProcessGroup, ranks=[world]), raised(ValueError, ProcessGroup, tp_degree=2, tp=1), raised(ValueError, ProcessGroup, tp_degree=0)])
if world == 4:
    square = ProcessGroup(tp_degree=2)
    found("two by two", shown(square))
    found("some ranks", shown(ProcessGroup(ranks=[3, 1], tp_degree=2)))

# ---- specifications
found("specifications", [repr(ReplicaSpec()), repr(ShardSpec([0], [2])), ShardSpec([0], [2]) == ShardSpec(dims=[0], num_partitions=[2], process_group=None),
                         ShardSpec([0], [2]) == ShardSpec([0], [4]), ReplicaSpec().placement is DistPlacementPattern.REPLICATE, DistPlacementPattern.SHARD.value,
                         ComputeSpec(ComputePattern.TP1D).output_replicate, [p.name for p in ComputePattern], [t.name for t in TensorType],
                         ColoTensorSpec(tensor_group).dist_attr == ReplicaSpec()])
found("bad specifications", [raised(ValueError, ShardSpec, [0], [1, 2]), raised(ValueError, ShardSpec, [0], [0]), raised(ValueError, ComputeSpec, ComputePattern.TP2D),
                             raised(TypeError, ComputeSpec, "1d")])

# ---- where blocks go, and gradients
x = torch.arange(64.0).view(8, 8)
layouts = [ReplicaSpec(), ShardSpec([0], [world]), ShardSpec([-1], [world]), ShardSpec([1], [world])]
if world == 4:
    layouts += [ShardSpec([0, 1], [2, 2]), ShardSpec([-1, 0], [2, 2])]
wrong = []
for old, new in itertools.product(layouts, layouts):
    leaf = x.clone().requires_grad_()
    moved = ColoTensor.from_torch_tensor(leaf, ColoTensorSpec(tensor_group)).redistribute(old).redistribute(new)
    block = x
    for dim, parts, place in zip(new.dims, new.num_partitions, (rank // 2, rank % 2) if len(new.dims) == 2 else (rank,)):
        block = block.chunk(parts, dim)[place]
    whole = moved.to_replicate()
    (whole * x).sum().backward()
    if not (torch.equal(moved, block) and moved.size_global() == x.shape and moved.numel_global() == 64 and torch.equal(whole, x) and torch.equal(leaf.grad, x)):
        wrong.append(f"{old} to {new}")
    if moved.untyped_storage().nbytes() != moved.numel() * moved.element_size():
        wrong.append(f"{old} to {new}: the block keeps more than itself")
    with DistSpecManager.no_grad():
        if DistSpecManager.handle_trans_spec(leaf, ReplicaSpec(), new, tensor_group).grad_fn is not None:
            wrong.append(f"{new}: a graph inside no_grad()")
found("moved wrongly", wrong)
rows = ShardSpec([0], [world])
t = ColoTensor.from_torch_tensor(torch.full((4, 5), float(rank)), ColoTensorSpec(tensor_group, rows))
found("a block", [list(t.shape), list(t.size()), list(t.size_global()), t.size_global(0), t.size_global(1), t.is_replicate(), t.is_sharded(), t.is_shard_1drow(), t.is_shard_1dcol()])
found("view", [list(t.view(20 * world).shape), list(t.view(4 * world, 5, 1).shape), list(t.view(-1, 5).shape)])
t.set_dist_spec(ReplicaSpec())
found("gathered in place", [list(t.shape), t[:, 0].tolist(), t.is_replicate()])
p = ColoParameter(x.clone(), spec=ColoTensorSpec(tensor_group))
(p * p).sum().backward()
p.set_dist_spec(rows)
found("its gradient goes with it", [list(p.shape), list(p.grad.shape), torch.equal(p.grad, 2 * p.detach())])
p.to_replicate_()
found("back", [list(p.shape), torch.equal(p.detach(), x), torch.equal(p.grad, 2 * x)])
found("a result", raised(RuntimeError, (p * 2).set_dist_spec, rows))
found("uneven", raised(ValueError, ColoTensor(torch.zeros(8 * world + 1, 2), ColoTensorSpec(tensor_group)).redistribute, rows) if world > 1 else "does not divide")
found("too many parts", raised(ValueError, ColoTensor(torch.zeros(8, 2), ColoTensorSpec(tensor_group)).set_dist_spec, ShardSpec([0], [2 * world])) if world > 1 else "makes")
found("no such dimension", raised(ValueError, ColoTensor(torch.zeros(8, 2), ColoTensorSpec(tensor_group)).redistribute, ShardSpec([2], [world])) if world > 1 else "dimension 2")
alone = ProcessGroup(tp_degree=1)
single = ColoTensor(torch.zeros(3, 5), ColoTensorSpec(alone, ShardSpec([0], [7])))
found("a group of one", [single.is_replicate(), list(single.size_global())])
found("default specification", [ColoTensor(torch.zeros(2)).is_replicate(), ColoTensor.from_torch_tensor(torch.zeros(2)).get_process_group() == ProcessGroup(),
                                ColoParameter(torch.zeros(2)).get_dp_world_size()])
other = ColoTensor(torch.zeros(4, 4), ColoTensorSpec(alone))
other.set_process_group(tensor_group)
found("another group", [other.get_process_group() == tensor_group, raised(RuntimeError, other.redistribute(rows).set_process_group, alone) if world > 1 else "call to_replicate_() first"])
if world == 4:
    two = ColoTensor(torch.arange(24.0).view(2, 3, 4), ColoTensorSpec(square))
    found("tp 2 and dp 2", raised(RuntimeError, two.set_process_group, tensor_group))
    moved = two.redistribute(ShardSpec([0], [2])).redistribute(ShardSpec([-1], [4]), tensor_group)
    found("between groups", [moved.is_sharded(), list(moved.shape), torch.equal(moved, torch.arange(24.0).view(2, 3, 4)[..., rank:rank + 1]), moved.redistribute(ReplicaSpec(), alone).tolist() == two.tolist()])

# ---- what a ColoTensor is
found("kinds", [isinstance(p, torch.nn.Parameter), isinstance(p, ColoTensor), type(p + 1) is ColoTensor, type(p.detach()) is ColoTensor, p.is_model_data(),
                (p + 1).is_model_data(), type(t.split(2)[0]) is ColoTensor, t.dim(), type(t.abs()) is ColoTensor])
p.set_tensor_spec(rows, ComputeSpec(ComputePattern.TP1D))
found("compute pattern", [p.has_compute_spec(), p.has_compute_pattern(ComputePattern.TP1D)])
copied, pickled, saved = copy.deepcopy(p), pickle.loads(pickle.dumps(p)), io.BytesIO()
torch.save({"p": p}, saved)
saved.seek(0)
loaded = torch.load(saved, weights_only=False)["p"]
found("copies", [[type(c) is ColoParameter, torch.equal(c.detach(), p.detach()), c.dist_spec == p.dist_spec, c.process_group == p.process_group,
                  c.has_compute_spec(), c.is_model_data(), c.requires_grad, c.data_ptr() != p.data_ptr()] for c in (copied, pickled, loaded)])


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.weight = ColoParameter(torch.ones(4, 4), spec=ColoTensorSpec(tensor_group, ShardSpec([0], [1]) if world == 1 else ReplicaSpec()))
        self.extra = ColoTensor(torch.zeros(2), ColoTensorSpec(tensor_group))
        self.inner.table = ColoTensor(torch.zeros(2), ColoTensorSpec(tensor_group))


layer = Layer()
found("named", [[name for name, _ in named_params_with_colotensor(layer, **more)] for more in ({}, {"prefix": "m"}, {"recurse": False})])
state = layer.state_dict()
again = Layer()
with torch.no_grad():
    layer.weight.mul_(3)
found("state dict", [list(state), again.load_state_dict(layer.state_dict()).missing_keys, again.weight.sum().item()])

# ---- DTensor
sharded = ColoTensor(x.clone(), ColoTensorSpec(tensor_group)).redistribute(rows)
distributed = sharded.to_dtensor()
back = ColoTensor.from_dtensor(distributed, tensor_group)
found("DTensor", [list(distributed.shape), torch.equal(distributed.full_tensor(), x), distributed.to_local().data_ptr() == sharded.data_ptr(),
                  back.data_ptr() == sharded.data_ptr(), back.is_shard_1drow() or world == 1, ColoTensor.from_dtensor(distributed).get_tp_world_size()])

# ---- hooks
calls = []


class Hook(ColoParamOpHook):
    def __init__(self, name):
        self.name = name

    def pre_forward(self, params):
        calls.append(f"{self.name} pre_forward {len(params)}")

    def post_forward(self, params):
        calls.append(f"{self.name} post_forward {len(params)}")

    def pre_backward(self, params):
        calls.append(f"{self.name} pre_backward {len(params)}")

    def post_backward(self, params):
        calls.append(f"{self.name} post_backward {len(params)}")


weight, bias = ColoParameter(torch.ones(8, 8), spec=ColoTensorSpec(tensor_group)), ColoParameter(torch.ones(8), spec=ColoTensorSpec(tensor_group))
weight.set_dist_spec(rows)
with ColoParamOpHookManager.use_hooks(Hook("outer")):
    hidden = F.linear(torch.ones(2, 8), weight, bias)
    with ColoParamOpHookManager.use_hooks(Hook("inner"), Hook("second")):
        result = F.linear(hidden, weight)
    with ColoParamOpHookManager.use_hooks():
        F.linear(hidden, weight)
result.sum().backward()
found("hooks", calls)
found("hooks change no gradient", [weight.grad.to_replicate().sum().item() if isinstance(weight.grad, ColoTensor) else weight.grad.sum().item(), bias.grad.sum().item()])
end()
