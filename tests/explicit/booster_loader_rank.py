"""The batches of prepare_dataloader() on each rank: see test_booster.py."""
import random

import torch
import torch.distributed as dist
from torch.utils.data.distributed import DistributedSampler

from castor.booster.plugin import TorchDDPPlugin
from found import end, found, launch


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 11

    def __getitem__(self, index):
        return index


class Drawn(Numbers):
    """Random numbers of a worker."""

    def __getitem__(self, index):
        return random.random(), torch.rand(()).item()


class Last(DistributedSampler):
    """Each rank gets all, backwards."""

    def __iter__(self):
        return iter(range(len(self.dataset) - 1, -1, -1))


if __name__ == "__main__":
    launch()
    plugin = TorchDDPPlugin()
    found("plugin", [plugin.rank, plugin.world_size, plugin.dp_size, plugin.dp_group is dist.group.WORLD])

    def batches(**options):
        return [batch.tolist() for batch in plugin.prepare_dataloader(Numbers(), 2, **options)]

    found("in order", batches())
    found("whole batches", batches(drop_last=True))
    found("shuffled", batches(shuffle=True, seed=3))
    found("again", batches(shuffle=True, seed=3) == batches(shuffle=True, seed=3))
    found("another seed", batches(shuffle=True, seed=4) != batches(shuffle=True, seed=3))
    loader = plugin.prepare_dataloader(Numbers(), 2, shuffle=True)
    first = [batch.tolist() for batch in loader]
    loader.sampler.set_epoch(1)
    found("another epoch", first != [batch.tolist() for batch in loader])
    found("sampler", [batch.tolist() for batch in plugin.prepare_dataloader(Numbers(), 6, distributed_sampler_cls=Last)])
    found("collated", [type(batch).__name__ for batch in plugin.prepare_dataloader(Numbers(), 6, collate_fn=tuple)])
    drawn = [batch for batch in plugin.prepare_dataloader(Drawn(), 1, num_workers=2)]
    found("drawn", [[number.item() for number in batch] for batch in drawn])
    end()
