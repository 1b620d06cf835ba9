"""The examples of Colossal-AI's documents that one process runs. Their lines stand as they are there; what they leave open comes
before, and what is looked at comes after them."""
import torch
from found import found

steps_run = []
loss_tensor = torch.tensor(3.0)
batch = {"input_ids": torch.ones(2, 4), "rest": [torch.zeros(3), "text"]}
train_dataloader = torch.utils.data.DataLoader(torch.arange(6), batch_size=2)

# ---- trainer utilities, without a process group
from coati.trainer.utils import (
    is_rank_0, to_device, all_reduce_mean, CycledDataLoader, AnnealingScheduler,
)
import torch
# Conditional logging on rank 0
if is_rank_0():
    print("Training started")
# Move batch to device
batch = to_device(batch, torch.device("cuda:0"))
# Synchronized metric averaging
loss_avg = all_reduce_mean(loss_tensor)
# Infinite data iteration
cycled_loader = CycledDataLoader(train_dataloader)
for step in range(10000):
    batch = cycled_loader.next()
    steps_run.append(batch)
# Temperature annealing for sampling
scheduler = AnnealingScheduler(start=1.0, end=0.1, warmup_steps=50, annealing_step=1000)
temps = []
for step in range(1000):
    temp = scheduler.get_temperature()
    scheduler.step_forward()
    temps.append(temp)

from coati.trainer.utils import (
    AnnealingScheduler,
    CycledDataLoader,
    is_rank_0,
    to_device,
    all_reduce_mean,
    all_reduce_sum,
    all_gather_tensors,
)
found("loop", [len(steps_run), steps_run[0].tolist(), steps_run[9999].tolist(), steps_run[9999].device.type, cycled_loader.count])
found("loss", [loss_avg.item(), loss_avg is loss_tensor, all_reduce_sum(loss_tensor).item(), [t.item() for t in all_gather_tensors([loss_tensor])]])
found("temperatures", [temps[0], temps[50], round(temps[51], 6), round(temps[999], 6), scheduler.get_temperature()])

# ---- merge and convert
from colossalai.tensor.utils import convert_dim_partition_dict, merge_same_dim_mesh_list

given = {1: [0], -1: [1]}
found("merged", [list(merge_same_dim_mesh_list(2, given).items()), list(given.items()), list(merge_same_dim_mesh_list(dim_size=2, dim_partition_dict={1: [0], 1: [1]}).items()),
                 list(convert_dim_partition_dict(3, {-1: [0], 0: [1]}).items())])

# ---- accumulation: 10 batches of data and an accumulate size of 4
import colossalai
from colossalai.engine import BaseGradientHandler
from colossalai.utils.gradient_accumulation import (GradAccumDataloader, GradAccumGradientHandler, GradAccumLrSchedulerByStep, GradAccumOptimizer,
                                                    accumulate_gradient)

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
plain = torch.nn.Linear(3, 1)
plain.load_state_dict(model.state_dict())
data = torch.randn(10, 5, 3)
handled = []


class Handler(BaseGradientHandler):
    def handle_gradient(self):
        handled.append(step + 1)


optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
dataloader = torch.utils.data.DataLoader(data, batch_size=None)
optimizer, dataloader, gradient_handlers, lr_scheduler = accumulate_gradient(
    model, optimizer, dataloader, accumulate_size=4, gradient_handlers=[Handler(model, optimizer)], lr_scheduler=lr_scheduler)
stepped, weight = [], model.weight.detach().clone()
for step, part in enumerate(dataloader):
    optimizer.zero_grad()
    optimizer.backward(model(part).square().mean())
    for handler in gradient_handlers:
        handler.handle_gradient()
    optimizer.step()
    lr_scheduler.step()
    if not torch.equal(weight, model.weight):
        stepped.append(step + 1)
        weight = model.weight.detach().clone()
other = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
for whole in data[:8].reshape(2, 20, 3):
    other.zero_grad()
    plain(whole).square().mean().backward()
    other.step()
    other.param_groups[0]["lr"] *= 0.5
found("accumulation", [stepped, handled, len(dataloader), step + 1, torch.allclose(model.weight, plain.weight, rtol=1e-5), lr_scheduler.get_last_lr(),
                       [type(part).__name__ for part in (optimizer, dataloader, gradient_handlers[0], lr_scheduler)],
                       GradAccumLrSchedulerByStep.compute_effective_steps_per_epoch(range(10), 4), len(GradAccumDataloader(range(10), 4)),
                       issubclass(GradAccumOptimizer, object) and issubclass(GradAccumGradientHandler, object)])

# ---- schedules
from colossalai.engine.schedule import BaseSchedule, NonPipelineSchedule

pairs = [(torch.ones(2, 3), torch.ones(2, 1))] * 4
engine, train, _, _ = colossalai.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.MSELoss(), pairs, verbose=False)
schedule = NonPipelineSchedule(batch_data_process_func=None)
data_iter = iter(train)
output, label, loss = schedule.forward_backward_step(engine, data_iter, forward_only=False, return_loss=True, return_output_label=True)
nothing = schedule.forward_backward_step(engine, data_iter, forward_only=True, return_loss=False, return_output_label=False)
loaded, target = schedule.load_batch(data_iter, to_gpu=True)
found("schedule", [list(output.shape), torch.allclose(loss, torch.nn.functional.mse_loss(output, label)), list(nothing), loaded.device.type, issubclass(NonPipelineSchedule, BaseSchedule),
                   model.weight.grad is not None])
