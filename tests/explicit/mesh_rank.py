"""castor.device.DeviceMesh, ShardingSpec, CommSpec and shape consistency on each rank: see test_mesh.py for what must be found."""
import itertools
import os

import torch
import torch.distributed as dist

from castor.device import AlphaBetaProfiler
from castor.device.device_mesh import DeviceMesh
from castor.tensor import d_tensor
from castor.tensor.comm_spec import CollectiveCommPattern, CommSpec
from castor.tensor.shape_consistency import ShapeConsistencyManager
from castor.tensor.sharding_spec import ShardingSpec
from castor.tensor.utils import convert_dim_partition_dict, merge_same_dim_mesh_list
from found import end, found, launch, raised

P = CollectiveCommPattern


def places():
    mesh = DeviceMesh(torch.arange(16).reshape(2, 8), (4, 4))
    found("places", [mesh.convert_map[5], mesh.convert_map[11], mesh.global_rank_to_process_groups_with_logical_rank(0)[0],
                     mesh.global_rank_to_process_groups_with_global_rank(2), mesh.shape, mesh.num_devices, mesh.flatten_device_mesh.shape])
    odd = DeviceMesh(torch.tensor([7, 3, 5, 1]), logical_mesh_id=torch.tensor([[1, 7], [5, 3]]))
    found("floats", [DeviceMesh(torch.Tensor([0, 1]), (2, 1)).logical_mesh_id.tolist(), raised(ValueError, DeviceMesh, torch.tensor([0.5, 1.0]))])
    found("local ranks", [mesh.global_rank_to_local_rank(11), mesh.global_rank_to_local_rank(11, 0), mesh.global_rank_to_local_rank(11, axis=1),
                          mesh.get_ranks_in_process_group(axis=1, global_rank=2), mesh.is_initialized])
    found("any ranks", [odd.global_rank_to_logical_rank(5), odd.global_rank_to_process_groups_with_global_rank(3), odd.flatten().logical_mesh_id.tolist()])
    found("bad meshes", [raised(ValueError, DeviceMesh, torch.arange(4), (3, 2)), raised(ValueError, DeviceMesh, torch.tensor([0, 0])),
                         raised(ValueError, DeviceMesh, torch.arange(4), (2, 2), mesh_alpha=[1]), raised(ValueError, mesh.global_rank_to_logical_rank, 16),
                         raised(ValueError, DeviceMesh, torch.arange(4), logical_mesh_id=torch.arange(1, 5)), raised(RuntimeError, mesh.group_along, 0)])


def costs():
    mesh = DeviceMesh(torch.arange(8), (2, 4), mesh_alpha=[2, 3], mesh_beta=[0.5, 0.25])
    found("mesh costs", [round(getattr(of, f"{name}_cost")(1024, axis), 6) for of, axes in ((mesh, (0, 1)), (mesh.flatten_device_mesh, (0,)))
                         for axis in axes for name in ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")])
    spec = ShardingSpec(mesh, (64, 32), {0: [0]})  # 1024 elements on a rank
    rows = {}
    for pattern in P:
        action = CommSpec(pattern, spec, gather_dim=0, shard_dim=1, logical_process_axis=1)
        forward = CommSpec(pattern, spec, gather_dim=0, shard_dim=1, logical_process_axis=1, forward_only=True)
        rows[pattern.name] = [{name: round(cost, 6) for name, cost in one.get_comm_cost().items()} for one in (action, forward)]
    found("costs", rows)
    along = CommSpec(P.ALLREDUCE_FWD_IDENTITY_BWD, spec, logical_process_axis=[0, 1])
    found("along a list", round(along.get_comm_cost()["total"], 6))
    split = CommSpec(P.SPLIT_FWD_GATHER_BWD, spec, shard_dim=1, logical_process_axis=1)
    split.shard_cost = 100
    found("shard cost", split.get_comm_cost()["forward"])


def specifications():
    mesh = DeviceMesh(torch.arange(16), (4, 4))
    given = {0: [0, 1]}
    spec = ShardingSpec(mesh, (16, 8, 6), given)
    found("text", [str(spec.sharding_sequence), repr(spec), spec.get_sharded_shape_per_device() == torch.Size((1, 8, 6)), given,
                   ShardingSpec(mesh, (16, 8, 6), sharding_sequence=["S01", "R", "R"]).dim_partition_dict,
                   str(ShardingSpec(mesh, (16, 8, 16), {-1: [1], 0: [0]}).sharding_sequence)])
    found("bad", [raised(ValueError, ShardingSpec, mesh, (16, 7), {1: [0]}), raised(ValueError, ShardingSpec, mesh, (16, 16), {0: [0], 1: [0]}),
                  raised(ValueError, ShardingSpec, mesh, (16,), {1: [0]}), raised(ValueError, ShardingSpec, mesh, (16,), {0: [2]}),
                  raised(ValueError, ShardingSpec, mesh, (16,)), raised(ValueError, ShardingSpec, mesh, (16,), sharding_sequence=["X"])])
    negative, same = {-1: [0], -2: [1]}, {1: [0], -1: [1]}
    found("dicts", [sorted(convert_dim_partition_dict(3, negative).items()), sorted(negative.items()), list(merge_same_dim_mesh_list(2, same).items()), sorted(same.items()),
                    raised(ValueError, convert_dim_partition_dict, 2, same)])


def paths():
    mesh, manager, nothing = DeviceMesh(torch.arange(4), (2, 2)), ShapeConsistencyManager(), {"forward": 0, "backward": 0, "total": 0}
    shape = torch.Size((64, 32, 16))
    steps = [(manager.get_all_all_gather_spec, {0: [0], 1: [1]}), (manager.get_all_all_to_all_spec, {0: [0], 1: [1]}), (manager.get_all_shard_spec, {0: [0]})]
    found("one step", [[str(spec.sharding_sequence) for spec in step(ShardingSpec(mesh, shape, of), nothing)] for step, of in steps])
    found("all one steps", [len(manager.get_all_one_step_transform_spec(ShardingSpec(mesh, shape, {0: [0], 1: [1]}), nothing))])
    specs, actions, cost = manager.shape_consistency(ShardingSpec(mesh, shape, {1: [0, 1]}), ShardingSpec(mesh, shape, {0: [0, 1]}))
    found("path", ["->".join(str(spec.sharding_sequence) for spec in specs), [repr(action) for action in actions],
                   cost == {name: sum(action.get_comm_cost()[name] for action in actions) for name in cost}])
    found("nothing to do", [len(part) for part in manager.shape_consistency(specs[0], specs[0])[:2]])


def groups_and_parts(rank):
    """Groups of meshes, distributed tensors, what is measured. The mesh is [[0, 1], [2, 3]]."""
    mesh = DeviceMesh(torch.arange(4), (2, 2))
    found("no groups", raised(RuntimeError, mesh.get_process_group, 0))
    mesh.init_logical_process_group()
    groups = [mesh.get_process_group(axis=axis) for axis in (0, 1)]
    sums = [torch.full((1,), float(rank)) for _ in groups]
    for one, group in zip(sums, groups):
        dist.all_reduce(one, group=group)
    of = DeviceMesh.from_process_group(groups)
    found("groups", [[one.item() for one in sums], mesh.get_ranks_in_process_group(axis=1, global_rank=2), mesh.get_process_group(1, 3) is mesh.get_process_group_for_all_axes(2)[1],
                     list(of.shape), of.get_process_group(axis=1) is groups[1], of.num_devices, of.is_initialized, of.logical_mesh_id, of.get_ranks_in_process_group(0),
                     raised(RuntimeError, of.global_rank_to_local_rank, 0), raised(RuntimeError, mesh.init_logical_process_group)])

    whole = d_tensor.ShardingSpec(dim_size=2, dim_partition_dict={})
    rows, both = d_tensor.ShardingSpec(2, {0: [0]}), d_tensor.ShardingSpec(2, sharding_sequence=["S0", "S1"])
    x = torch.arange(64.0).reshape(8, 8)
    leaf = x.clone().requires_grad_()
    part = d_tensor.distribute_tensor(leaf, mesh, rows)
    i, j = divmod(rank, 2)
    other = d_tensor.redistribute(part, mesh, both)
    again = d_tensor.to_global(other)
    (again * 2).sum().backward()
    kept = d_tensor.init_as_dtensor(x[4 * i:4 * i + 4].clone(), mesh, rows, (8, 8))
    wide, high = d_tensor.shard_colwise(x, groups[1]), d_tensor.shard_rowwise(x)
    param = d_tensor.sharded_tensor_to_param(high)
    found("distributed", [torch.equal(part, x[4 * i:4 * i + 4]), torch.equal(other, x[4 * i:4 * i + 4, 4 * j:4 * j + 4]), torch.equal(again, x), bool(leaf.grad.any()),
                          d_tensor.is_distributed_tensor(kept.detach()), torch.equal(d_tensor.to_global(kept), x), torch.equal(wide, x[:, 4 * j:4 * j + 4]),
                          torch.equal(high, x[2 * rank:2 * rank + 2]), d_tensor.get_shard_dim_1d(wide), d_tensor.get_shard_dim_1d(param), d_tensor.compute_global_numel(param),
                          list(d_tensor.get_global_shape(param.clone())), d_tensor.is_sharded(part), d_tensor.is_sharded(again), str(d_tensor.get_sharding_spec(other))])
    converter, at = d_tensor.LayoutConverter(), lambda spec: d_tensor.Layout(mesh, spec, (8, 8))
    path, actions = converter.layout_converting(at(rows), at(whole))
    steps = sorted(str(one.sharding_spec) for one in converter.shard_transform_layout(at(rows)))
    found("layouts", [[str(one.sharding_spec) for one in path], len(actions), steps, converter.get_total_comm_cost(at(rows), at(whole))["total"] > 0,
                      list(at(both).get_sharded_shape_per_device()), raised(ValueError, d_tensor.distribute_tensor, torch.ones(3, 3), mesh, rows),
                      raised(ValueError, d_tensor.to_global, x), raised(ValueError, d_tensor.init_as_dtensor, x[:3], mesh, rows, (8, 8)),
                      raised(ValueError, d_tensor.redistribute, part, of, rows)])

    measured = AlphaBetaProfiler([0, 1, 2, 3], warmup=1, repeat=2, latency_iters=3)
    alphas, betas = measured.extract_alpha_beta_for_device_mesh()
    found("measured", [sorted(map(list, measured.alpha_beta_dict)), all(a > 0 and b > 0 for a, b in measured.alpha_beta_dict.values()), [len(alphas), len(betas)],
                       min(alphas + betas) > 0, measured.alpha_beta_dict[0, 3] == measured.alpha_beta_dict[3, 0]])
    fast, slow = (1e-5, 5e-12), (1e-5, 7e-11)
    pairs = {(0, 1): fast, (0, 2): slow, (0, 3): slow, (1, 2): slow, (1, 3): slow, (2, 3): (1e-5, 5.2e-12)}
    found("best mesh", [AlphaBetaProfiler([0, 1, 2, 3], {**pairs, **{pair[::-1]: of for pair, of in pairs.items()}}).search_best_logical_mesh(),
                        AlphaBetaProfiler([0, 1, 2, 3], dict.fromkeys(pairs, fast)).search_best_logical_mesh(),
                        AlphaBetaProfiler([0, 3], {(0, 3): fast, (3, 0): fast}).search_best_logical_mesh(),
                        raised(ValueError, AlphaBetaProfiler([0, 1, 2], {}).search_best_logical_mesh)])


def conversions():
    """Every pair of specs of two tensors, on a mesh whose ranks are in another order than their numbers."""
    launch()
    rank = dist.get_rank()
    mesh = DeviceMesh(torch.arange(4), logical_mesh_id=torch.tensor([[3, 0], [1, 2]]), init_process_group=True)
    x = torch.arange(64.0).view(8, 8)
    place = mesh.global_rank_to_logical_rank(rank)

    def part(spec):
        block = x
        for dim, axes in spec.dim_partition_dict.items():
            for axis in axes:
                block = block.chunk(2, dim)[place[axis]]
        return block.clone(memory_format=torch.contiguous_format)

    dicts = [{}, {0: [0]}, {0: [1]}, {1: [0]}, {1: [1]}, {0: [0, 1]}, {0: [1, 0]}, {1: [0, 1]}, {1: [1, 0]}, {0: [0], 1: [1]}, {0: [1], 1: [0]}]
    specs = [ShardingSpec(mesh, x.shape, one) for one in dicts]
    manager, wrong = ShapeConsistencyManager(), []
    for source, target in itertools.product(specs, specs):
        leaf = part(source).requires_grad_()
        result = manager.apply_for_autoparallel_runtime(leaf, source, target)
        if not torch.equal(result, part(target)):
            wrong.append(f"{source.sharding_sequence} to {target.sharding_sequence}")
        (result * part(target)).sum().backward()
        if not torch.equal(leaf.grad, part(source)):
            wrong.append(f"{source.sharding_sequence} to {target.sharding_sequence}: gradient")
    found("converted wrongly", wrong)
    whole = ShardingSpec(mesh, x.shape, {})
    carried = part(specs[1])
    carried.sharding_spec = specs[1]
    moved = manager.apply(carried, whole)
    found("apply", [torch.equal(moved, x), moved.sharding_spec is whole])

    # ---- communications by themselves
    leaf = torch.full((2, 2), float(rank), requires_grad=True)
    total = CommSpec(P.ALLREDUCE_FWD_IDENTITY_BWD, whole, logical_process_axis=0).covert_spec_to_action(leaf)
    (total * (rank + 1)).sum().backward()
    found("all-reduce", [total[0, 0].item(), leaf.grad[0, 0].item()])
    leaf.grad = None
    same = CommSpec(P.IDENTITY_FWD_ALLREDUCE_BWD, whole, logical_process_axis=1).convert_spec_to_action(leaf)
    (same * (rank + 1)).sum().backward()
    found("identity", [same[0, 0].item(), leaf.grad[0, 0].item()])
    leaf = part(specs[9]).requires_grad_()
    mixed = CommSpec(P.MIXGATHER_FWD_SPLIT_BWD, specs[9], gather_dim=[0, 1], shard_dim=[0, 1], logical_process_axis=[0, 1], mix_gather=True).covert_spec_to_action(leaf)
    (mixed * x).sum().backward()
    found("mixed gather", [torch.equal(mixed, x), torch.equal(leaf.grad, part(specs[9]))])
    alone = CommSpec(P.GATHER_FWD_SPLIT_BWD, specs[1], gather_dim=0, shard_dim=0, logical_process_axis=0, forward_only=True)
    found("forward only", alone.covert_spec_to_action(part(specs[1]).requires_grad_()).requires_grad)
    groups_and_parts(rank)
    split = CommSpec(P.SPLIT_FWD_GATHER_BWD, whole, shard_dim=0, logical_process_axis=0)
    found("indivisible", raised(ValueError, split.covert_spec_to_action, torch.zeros(3, 3)))
    end()


if int(os.environ.get("WORLD_SIZE", 1)) == 4:
    conversions()
else:
    places()
    costs()
    specifications()
    paths()
