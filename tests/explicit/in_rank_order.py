"""PyTorch's own reductions with the ranks' parts added in rank order, as Castor adds them. Gloo has another order for more than two ranks, and two
runs that add in different orders could be compared by a tolerance only."""
import torch
import torch.distributed as dist


def _sum(tensor, group):
    every = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, tensor, group=group)
    total = every[0].clone()
    for other in every[1:]:
        total += other
    return total


def mean(group, bucket):
    """A communication hook of DistributedDataParallel."""
    done = torch.futures.Future()
    done.set_result(_sum(bucket.buffer() * (1 / dist.get_world_size(group)), group))
    return done
