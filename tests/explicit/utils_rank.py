"""castor.trainer.utils on each rank: see test_utils.py for what must be found."""
import collections
import os

import torch
import torch.distributed as dist

from castor.trainer.utils import (
    AnnealingScheduler, CycledDataLoader, all_gather_tensors, all_reduce_mean, all_reduce_sum, is_rank_0, to_device,
)
from found import end, found, raised

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))

# ---- alone, or before the process group is there
alone = torch.tensor([1.0, 2.0])
found("unchanged", [all_reduce_sum(alone) is alone, all_reduce_mean(alone) is alone, alone.tolist()])
found("gathered alone", [t.tolist() for t in all_gather_tensors([torch.ones(2), torch.zeros(())])])
found("is rank 0, alone", is_rank_0())

# ---- the scheduler
scheduler = AnnealingScheduler(1.0, 0.0, warmup_steps=2, annealing_step=8)
temperatures = []
for _ in range(11):
    temperatures.append(scheduler.get_temperature())
    scheduler.get_temperature()
    scheduler.step_forward()
found("temperatures", temperatures)
late = AnnealingScheduler(start=2.0, end=1.0, warmup_steps=5, annealing_step=3)
found("warm-up first", [(late.get_temperature(), late.step_forward())[0] for _ in range(8)])
found("defaults", [AnnealingScheduler(3, 1).warmup_steps, AnnealingScheduler(3, 1).annealing_step])


# ---- the loader
class Counted:
    """Three items; says how often it was begun."""

    def __init__(self, items):
        self.items, self.begun = items, 0

    def __iter__(self):
        self.begun += 1
        return iter(self.items)


items = Counted([10, 20, 30])
cycled = CycledDataLoader(items)
seen = [(None, cycled.count, items.begun)]
for _ in range(8):
    seen.append((cycled.next(), cycled.count, items.begun))
found("cycled", seen)
empty = CycledDataLoader(Counted([]))
raised(StopIteration, empty.next)
raised(StopIteration, empty.next)
found("cycled, empty", empty.count)
real = CycledDataLoader(torch.utils.data.DataLoader(torch.arange(5), batch_size=2))
found("cycled, DataLoader", [real.next().tolist() for _ in range(7)])

# ---- devices
Pair = collections.namedtuple("Pair", "left right")
nested = {"a": [torch.zeros(2), (torch.ones(1), "text")], "b": Pair(torch.zeros(1), None), "c": 3}
moved = to_device(nested, torch.device("meta"))
found("moved", [moved["a"][0].device.type, moved["a"][1][0].device.type, moved["a"][1][1], type(moved["b"]).__name__,
                moved["b"].left.device.type, moved["b"].right, moved["c"], nested["a"][0].device.type])


def together():
    dist.init_process_group("gloo")
    found("is rank 0", is_rank_0())
    mine = torch.tensor([1.0 + rank, 10.0 * rank])
    found("sum", [all_reduce_sum(mine) is mine, mine.tolist()])
    mine = torch.tensor([1.0 + rank, 10.0 * rank])
    found("mean", [all_reduce_mean(mine) is mine, mine.tolist()])
    counts = torch.tensor([rank, 5])
    found("integers", [all_reduce_sum(counts).tolist(), raised(TypeError, all_reduce_mean, counts)])
    strided = torch.arange(4.0).reshape(2, 2).t()[0]  # 0, 2 of a larger storage
    found("strided", all_reduce_sum(strided).tolist())
    parameter = torch.nn.Parameter(torch.full((2,), float(rank)))
    loss = (parameter * 4).sum()
    found("with a graph", [all_reduce_mean(loss).item(), all_reduce_mean(parameter).tolist(), loss.requires_grad])

    alone_groups = [dist.new_group([r]) for r in range(world)]
    Plugin = collections.namedtuple("Plugin", "dp_group")
    plugin = Plugin(alone_groups[rank])
    found("plugin's group", [all_reduce_sum(torch.tensor([1.0 + rank]), plugin).item(), all_reduce_mean(torch.tensor([1.0 + rank]), plugin).item(),
                             [t.item() for t in all_gather_tensors([torch.tensor(rank)], plugin)]])
    found("a plugin without a group", all_reduce_sum(torch.tensor([1.0 + rank]), object()).item())

    base = torch.arange(12, dtype=torch.float64).reshape(3, 4)
    lists = [[base[1, 1:3], torch.tensor(7)], [torch.zeros(0, 2), torch.tensor([[True]]), base.to(torch.bfloat16)[:1]]]
    gathered = all_gather_tensors(lists[rank])
    found("gathered", [(t.tolist(), list(t.shape), str(t.dtype), t.untyped_storage().nbytes()) for t in gathered])
    gathered[0].zero_()
    found("gathered are copies", base[1, 1:3].tolist())
    found("none to give", [t.tolist() for t in all_gather_tensors([parameter] if rank else [])])
    found("nobody gives", all_gather_tensors([]))


if world > 1:
    together()
    end()
    found("is rank 0, after", is_rank_0())
