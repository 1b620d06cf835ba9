"""PyTorch's own reductions with the ranks' parts added in rank order, as Castor adds them. Gloo has another order for more than two ranks, and two
runs that add in different orders could be compared by a tolerance only."""
import torch
import torch.distributed as dist


def _sum(tensor, group, part=lambda whole: whole):
    every = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, tensor, group=group)
    total = part(every[0]).clone()
    for other in every[1:]:
        total += part(other)
    return total


def mean(group, bucket):
    """A communication hook of DistributedDataParallel."""
    done = torch.futures.Future()
    done.set_result(_sum(bucket.buffer() * (1 / dist.get_world_size(group)), group))
    return done


class ReduceScatter:
    """For FSDPModule.set_custom_reduce_scatter."""

    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        scaled = input_tensor * (1 / ranks) if op == dist.ReduceOp.AVG else input_tensor
        output_tensor.copy_(_sum(scaled, group, lambda whole: whole.view(ranks, -1)[rank]).view_as(output_tensor))
