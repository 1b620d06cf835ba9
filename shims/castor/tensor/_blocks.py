"""Blocks of a tensor on the ranks of a group, what moves between them, and its gradient.

Every rank computes the same loss, so the gradient of a tensor that all ranks have is whole and equal on all of them. Hence the
gradient of a gather is a division, that of a division a gather, that of an exchange the exchange back, and that of a sum every
addend's.

divisions   [(dimension, parts)]: block i of a tensor in row-major order, the last division fastest"""
import torch
import torch.distributed as dist


def block(tensor, divisions, index):
    """Block `index` of a whole tensor, which need not live on for it. ValueError: it does not divide into equal parts."""
    whole = tensor
    for dim, parts in reversed(divisions):
        check(tensor.shape, dim, parts)
        index, part = divmod(index, parts)
        tensor = tensor.narrow(dim, part * (tensor.size(dim) // parts), tensor.size(dim) // parts)
    return tensor.contiguous() if tensor.shape == whole.shape else tensor.clone(memory_format=torch.contiguous_format)


def check(shape, dim, parts):
    if shape[dim] % parts:
        raise ValueError(f"castor: dimension {dim} of a tensor of shape {tuple(shape)} does not divide into {parts} equal parts")


class Line:
    """Ranks that have the blocks of one tensor, in the order of the blocks. `group`: PyTorch's of them."""

    def __init__(self, group, ranks):
        self.group, self.ranks = group, ranks
        self.place = ranks.index(dist.get_rank())
        order = sorted(range(len(ranks)), key=ranks.__getitem__)  # PyTorch's groups are in the order of the ranks' numbers
        self._order = None if order == list(range(len(ranks))) else torch.tensor(order)

    def gather(self, tensor, divisions):
        """The whole tensor, of which each rank has a block."""
        gathered = tensor.new_empty(len(self.ranks) * tensor.numel())
        dist.all_gather_into_tensor(gathered, tensor.contiguous().view(-1), group=self.group)
        blocks = self._by_place(gathered.view(len(self.ranks), *tensor.shape)).view(*(parts for _, parts in divisions), *tensor.shape)
        dims, ndim = [dim % tensor.dim() for dim, _ in divisions], tensor.dim()
        order = [axis for dim in range(ndim) for axis in (*(i for i, divided in enumerate(dims) if divided == dim), len(dims) + dim)]
        shape = list(tensor.shape)
        for dim, (_, parts) in zip(dims, divisions):
            shape[dim] *= parts
        return blocks.permute(order).reshape(shape).contiguous()

    def exchange(self, tensor, joined, divided):
        """From blocks along dimension `joined` to blocks along `divided`."""
        check(tensor.shape, divided, len(self.ranks))
        outgoing = tensor.unflatten(divided, (len(self.ranks), -1)).movedim(divided % tensor.dim(), 0)
        outgoing = (outgoing if self._order is None else outgoing[self._order.to(tensor.device)]).contiguous()
        incoming = torch.empty_like(outgoing)
        dist.all_to_all_single(incoming, outgoing, group=self.group)
        joined %= tensor.dim()
        return self._by_place(incoming).movedim(0, joined).flatten(joined, joined + 1).contiguous()

    def _by_place(self, blocks):
        """Blocks that lie by the ranks' numbers, by their places instead."""
        if self._order is None:
            return blocks
        placed = torch.empty_like(blocks)
        placed[self._order.to(blocks.device)] = blocks
        return placed

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
