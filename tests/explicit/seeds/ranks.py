"""The examples of Colossal-AI's documents about tensors, on several ranks, and the schedule of a pipeline. As alone.py has them."""
import torch
import torch.distributed as dist

import colossalai
from found import end, found, launch

launch()
rank, world_size = dist.get_rank(), dist.get_world_size()
t_ref = torch.arange(12.0).reshape(4, 3)
linear_size = (4, 4)

from colossalai.tensor import (ColoParameter, ColoParamOpHook, ColoParamOpHookManager, ColoTensor, ColoTensorSpec, CommSpec, ComputePattern, ComputeSpec,
                               ProcessGroup, ReplicaSpec, ShardSpec, named_params_with_colotensor)

# ---- ColoTensor
pg = ProcessGroup()
colo_t1 = ColoTensor(torch.randn(2,3), spec = ColoTensorSpec(pg, ReplicaSpec()))
# The tensor passed in is a tensor after sharding but not a global tensor.
shard_spec = ShardSpec(process_group=ProcessGroup(tp=world_size),
                 dims=[0],
                 num_partitions=[world_size])
tensor_spec = ColoTensorSpec(pg, shard_spec)
colo_t2 = ColoTensor.from_torch_tensor(t_ref.clone(), tensor_spec)

found("replicated", [isinstance(colo_t1, torch.Tensor), list(colo_t1.size()), colo_t1.is_replicate(), pg.tp_world_size(), pg.dp_world_size()])
found("sharded", [list(colo_t2.size()), torch.equal(torch.Tensor(colo_t2.detach()), t_ref) if world_size == 1 else True])
divided = ColoTensor.from_torch_tensor(t_ref[: 4 // world_size].clone(), ColoTensorSpec(ProcessGroup(tp=world_size), ShardSpec([0], [world_size])))
found("divided", [list(divided.size()), list(divided.size_global()), list(divided.redistribute(ReplicaSpec()).size()), ProcessGroup(tp_degree=world_size).tp_rank_list()])

# ---- named_params_with_colotensor. The two lines that exchange the weight have one argument too few in the documents.
model = torch.nn.Linear(*linear_size)
delattr(model, "weight")
setattr(model, "weight", ColoTensor(torch.ones(4, 4), spec=ColoTensorSpec(pg)))
sizes = []
for name, param in named_params_with_colotensor(model):
    if name in ['weight']:
        print(param.size())
        sizes.append(list(param.size()))
found("named", [sizes, [name for name, _ in named_params_with_colotensor(model, prefix="part", recurse=True)]])

# ---- hooks, nested
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


weight = ColoParameter(torch.ones(4, 4), spec=ColoTensorSpec(pg))
with ColoParamOpHookManager.use_hooks(Hook("outer")):
    hidden = torch.nn.functional.linear(torch.ones(1, 4), weight)
    with ColoParamOpHookManager.use_hooks(Hook("inner")):
        hidden = torch.nn.functional.linear(hidden, weight)
    hidden.sum().backward()
found("hooks", calls)
found("hooked gradient", weight.grad.tolist()[0])
found("compute", [str(ComputeSpec(ComputePattern.TP1D).compute_pattern)])

# ---- costs over a mesh of devices
from colossalai.device.device_mesh import DeviceMesh
from colossalai.tensor.comm_spec import CollectiveCommPattern
from colossalai.tensor.sharding_spec import ShardingSpec

mesh = DeviceMesh(torch.arange(4), (2, 2))
spec = ShardingSpec(mesh, torch.Size((4, 4)), {0: [0]})
cost = CommSpec(CollectiveCommPattern.GATHER_FWD_SPLIT_BWD, spec, gather_dim=0, logical_process_axis=0).get_comm_cost()
found("cost", [{key: round(value, 6) for key, value in cost.items()}, str(spec.get_sharded_shape_per_device())])

# ---- the schedule of a pipeline
if world_size > 1:
    from colossalai.engine.schedule import PipelineSchedule

    colossalai.launch(rank=rank, world_size=world_size, host="localhost", port=0, verbose=False,
                      config=dict(parallel=dict(pipeline=world_size), NUM_MICRO_BATCHES=2))
    torch.manual_seed(7)
    stages = [torch.nn.Linear(3, 3) for _ in range(world_size)]
    data, labels = torch.randn(4, 3), torch.randn(4, 3)
    plain = torch.nn.functional.mse_loss(torch.nn.Sequential(*stages)(data), labels)
    plain.backward()
    expected = stages[rank].weight.grad.clone()
    stages[rank].zero_grad()
    engine, _, _, _ = colossalai.initialize(stages[rank], torch.optim.SGD(stages[rank].parameters(), lr=0.1), torch.nn.MSELoss(), verbose=False)
    schedule = PipelineSchedule(num_microbatches=2, batch_data_process_func=None, tensor_shape=None, scatter_gather_tensors=False)
    output, label, loss = schedule.forward_backward_step(engine, iter([(data, labels)]), forward_only=False, return_loss=True, return_output_label=True)
    last = rank == world_size - 1
    found("pipeline", [(output is not None) == last, torch.allclose(loss, plain) if last else loss is None, torch.allclose(stages[rank].weight.grad, expected, atol=1e-6)])
end()
