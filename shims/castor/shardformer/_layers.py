"""Linear layers and embeddings whose weights are divided over the ranks of a tensor-parallel group.

A divided parameter is a DTensor: what looks at it from outside (a norm, an optimizer, a checkpoint) sees the whole tensor. The layer itself
computes with its part, and what it communicates are activations. Every rank computes the same loss."""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Shard

__all__ = ["COLUMN", "GATHERED", "ROW", "SPLIT", "Divided", "DividedEmbedding", "dim_of", "divide_module", "kind_of", "part_of"]

# What a layer does with its weight, its input and its output.
COLUMN = "column"  # divided by outputs, and so is the output
GATHERED = "gathered"  # divided by outputs (an embedding: by features, or by entries), which are put together
ROW = "row"  # divided by inputs; so is the input, and the ranks' outputs are added
SPLIT = "split"  # the same, and the input is whole: each rank takes its part


# Each one's backward is another of these four, so gradients have gradients.

class _Same(torch.autograd.Function):
    """Every rank uses the whole input for its own part of the output: gradients are added."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return _Added.apply(gradient, ctx.group), None


class _Added(torch.autograd.Function):
    """The sum of the ranks' parts, whose gradient is that of each."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        x = x.contiguous().clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return _Same.apply(gradient, ctx.group), None


class _Together(torch.autograd.Function):
    """The ranks' parts of the last dimension, put together."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return _gather(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return _Own.apply(gradient, ctx.group), None


class _Own(torch.autograd.Function):
    """This rank's part of the last dimension. Each rank has the gradient of its part."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return part_of(x, -1, group).contiguous()

    @staticmethod
    def backward(ctx, gradient):
        return _Together.apply(gradient, ctx.group), None


def _size_of(group):
    """Also of a group that torch.distributed does not know (agent/device_ranks/own_group.py)."""
    return dist.get_world_size() if group is None else group.size()


def _rank_in(group):
    return dist.get_rank() if group is None else group.rank()


def _gather(x, group):
    x = x.contiguous()
    parts = [torch.empty_like(x) for _ in range(_size_of(group))]
    dist.all_gather(parts, x, group=group)
    return torch.cat(parts, -1)


def part_of(tensor, dim, group):
    """This rank's block; the dimension divides."""
    return tensor.chunk(_size_of(group), dim)[_rank_in(group)]


def _local(parameter):
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def _group_of(layer):
    """The tensor-parallel group: a DTensor's, or that of a layer whose parameters are plain (layer/)."""
    return layer.weight.device_mesh.get_group() if isinstance(layer.weight, DTensor) else layer.castor_group


def output_of(product, x, use, group, weight, bias):
    """A divided layer's output, from this rank's parts of its weight, and of its bias if it is divided."""
    if use in (COLUMN, GATHERED):
        y = product(_Same.apply(x, group), weight, bias)
        return y if use == COLUMN else _Together.apply(y, group)
    y = _Added.apply(product(_Own.apply(x, group) if use == SPLIT else x, weight, None), group)
    return y if bias is None else y + bias


def product_of(kind):
    return _conv1d if kind == "conv1d" else F.linear


def _conv1d(x, weight, bias):
    """transformers' Conv1D: a Linear whose weight is transposed."""
    flat = x.reshape(-1, x.size(-1))
    flat = flat @ weight if bias is None else torch.addmm(bias, flat, weight)
    return flat.view(*x.shape[:-1], weight.size(1))


class Divided:
    """The part of a divided layer's class that computes. `castor_use`: COLUMN and so on."""

    castor_product = staticmethod(F.linear)

    def forward(self, x):
        bias = self.bias if self.bias is None else _local(self.bias)
        return output_of(self.castor_product, x, self.castor_use, _group_of(self), _local(self.weight), bias)


class _DividedConv1D(Divided):
    castor_product = staticmethod(_conv1d)


class DividedEmbedding:
    """By entries (dimension 0 of the weight): each rank looks up its own, and the others' are zeros. By features: all look up."""

    def forward(self, ids):
        group, weight = _group_of(self), _local(self.weight)
        if self.castor_use == SPLIT:
            return _Together.apply(F.embedding(ids, weight, self.padding_idx), group)
        entries = weight.size(0)
        if ids.numel() and not ids.is_cuda and not 0 <= int(ids.min()) <= int(ids.max()) < self.num_embeddings:
            raise IndexError(f"castor: an embedding of {self.num_embeddings} entries is asked for entry {int(ids.min())} or {int(ids.max())}")
        own = ids - _rank_in(group) * entries
        outside = (own < 0) | (own >= entries)
        padding = None
        if self.padding_idx is not None:
            padding = self.padding_idx - _rank_in(group) * entries
            padding = padding if 0 <= padding < entries else None
        y = F.embedding(own.masked_fill(outside, 0), weight, padding)
        return _Added.apply(y.masked_fill(outside.unsqueeze(-1), 0.0), group)


_classes = {}  # (a layer's class, what is put before it): the class made of both


def kind_of(module):
    """"linear", "conv1d" or "embedding"; None: a layer that is not divided. Subclasses may do other things with their weights."""
    if "weight" not in module._parameters or module.weight is None:
        return None  # weight norms and the like make it anew for each call
    if type(module) is torch.nn.Linear:
        return "linear"
    if type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers."):
        return "conv1d"
    plain = type(module) is torch.nn.Embedding and module.max_norm is None and not module.sparse and not module.scale_grad_by_freq
    return "embedding" if plain else None


def dim_of(kind, use):
    """The dimension of the weight that is divided; an embedding's: 0, or 1 for SPLIT."""
    by_outputs = use in (COLUMN, GATHERED)
    return (1 if by_outputs else 0) if kind == "conv1d" else (0 if by_outputs else 1)


def divide_module(module, use, mesh, made):
    """Makes a layer divided. mesh: the DeviceMesh of the tensor-parallel group; made: {a parameter's id: its DTensor}, for
    parameters of several modules."""
    kind, group = kind_of(module), mesh.get_group()
    dim = dim_of(kind, use)
    if module.weight.shape[dim] % mesh.size():
        raise ValueError(f"castor: the weight of a {type(module).__name__} is {tuple(module.weight.shape)}, and dimension {dim} does not divide by {mesh.size()} ranks: "
                         "leave this layer out of the policy")

    def divided(parameter, along):
        if id(parameter) not in made:
            local = part_of(parameter.detach(), along, group).clone(memory_format=torch.contiguous_format)
            whole = DTensor.from_local(local, mesh, [Shard(along)], run_check=False)
            made[id(parameter)] = torch.nn.Parameter(whole, requires_grad=parameter.requires_grad), parameter
        return made[id(parameter)][0]

    module.weight = divided(module.weight, dim)
    if kind != "embedding" and use in (COLUMN, GATHERED) and module.bias is not None:
        module.bias = divided(module.bias, 0)
    before = {"linear": Divided, "conv1d": _DividedConv1D, "embedding": DividedEmbedding}[kind]
    key = type(module), before
    if key not in _classes:
        _classes[key] = type(type(module).__name__, (before, type(module)), {"__module__": __name__})
    module.castor_use = use
    module.__class__ = _classes[key]
