"""Blocks of a tensor on the ranks of a group, what moves between them, and its gradient.

Every rank computes the same loss, so the gradient of a tensor that all ranks have is whole and equal on all of them. Hence the
gradient of a gather is a division, that of a division a gather, that of an exchange the exchange back, and that of a sum every
addend's.

divisions   [(dimension, parts)]: block i of a tensor in row-major order, the last division fastest"""
import torch
import torch.distributed as dist


def block(tensor, divisions, index):
    """Block `index` of a whole tensor. ValueError: it does not divide into equal parts."""
    for dim, parts in reversed(divisions):
        check(tensor.shape, dim, parts)
        index, part = divmod(index, parts)
        tensor = tensor.narrow(dim, part * (tensor.size(dim) // parts), tensor.size(dim) // parts)
    return tensor.contiguous()


def check(shape, dim, parts):
    if shape[dim] % parts:
        raise ValueError(f"castor: dimension {dim} of a tensor of shape {tuple(shape)} does not divide into {parts} equal parts")


class Line:
    """Ranks that have the blocks of one tensor, in the order of the blocks. `group`: PyTorch's of them."""

    def __init__(self, group, ranks):
        self.group, self.ranks = group, ranks
        self.place = ranks.index(dist.get_rank())
        self._order = sorted(range(len(ranks)), key=ranks.__getitem__)  # PyTorch's groups are in the order of the ranks' numbers

    def gather(self, tensor, divisions):
        """The whole tensor, of which each rank has a block."""
        blocks = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in self.ranks]
        dist.all_gather([blocks[place] for place in self._order], tensor.contiguous(), group=self.group)
        for dim, parts in reversed(divisions):
            blocks = [torch.cat(blocks[i:i + parts], dim) for i in range(0, len(blocks), parts)]
        return blocks[0]

    def exchange(self, tensor, joined, divided):
        """From blocks along dimension `joined` to blocks along `divided`."""
        check(tensor.shape, divided, len(self.ranks))
        parts = tensor.chunk(len(self.ranks), divided)
        outgoing = torch.stack([parts[place] for place in self._order])
        incoming = torch.empty_like(outgoing)
        dist.all_to_all_single(incoming, outgoing, group=self.group)
        arrived = dict(zip(self._order, incoming.unbind(0)))
        return torch.cat([arrived[place] for place in range(len(self.ranks))], joined)

    def sum(self, tensor):
        total = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=self.group)
        return total


def same(tensor):
    return tensor


class Communication(torch.autograd.Function):
    """forward(tensor), whose gradient is backward(gradient)."""

    @staticmethod
    def forward(ctx, tensor, forward, backward):
        ctx.backward_action = backward
        result = forward(tensor)
        return result.view_as(result) if result is tensor else result

    @staticmethod
    def backward(ctx, gradient):
        return ctx.backward_action(gradient), None, None
