"""Products, embeddings and views of sharded parameters, with the least communication (Colossal-AI: colossalai.nn._ops).

A parameter that is divided by rows or columns of the product stays where it is. Activations are gathered, divided or summed over
the tensor-parallel group. All results and gradients are those of whole tensors. What fits no form here goes the way of all operators."""
import torch
import torch.nn.functional as F

from .colo_tensor import ColoTensor, _call, _is_sharded, _local
from .dist_spec_mgr import is_whole, reduce_grad, reduce_input
from .distspec import ReplicaSpec, ShardSpec
from .op_wrapper import colo_op_impl
from .tensor_spec import ColoTensorSpec

_Tensor = torch.Tensor


def _otherwise(func, *args, **kwargs):
    """The way of operators without a form of their own."""
    return _call(func, args, kwargs)


def _made(local, pg, spec, weight):
    """The result of a product: sharded on its last dimension, or whole if the parameter's compute pattern wants it so."""
    result = ColoTensor.from_torch_tensor(local, ColoTensorSpec(pg, spec))
    compute = weight.compute_spec
    return result.to_replicate() if spec.dims and (compute is None or compute.output_replicate) else result


def _lying(tensor, spec, pg):
    """The block under `spec` of an operand; a plain tensor is whole."""
    if not isinstance(tensor, ColoTensor):
        if is_whole(spec, pg):
            return tensor
        tensor = ColoTensor.from_torch_tensor(tensor, ColoTensorSpec(pg))
    return _local(tensor.redistribute(spec, pg))


def _columns(product, x, weight, bias):
    """product(x, weight, bias) for a weight whose outputs are divided."""
    pg = weight.process_group
    last = ShardSpec([-1], [pg.tp_world_size()])
    x = reduce_grad(_lying(x, ReplicaSpec(), pg), pg)
    bias = None if bias is None else _lying(bias, last, pg)
    return _made(product(x, _local(weight), bias), pg, last, weight)


def _rows(product, x, weight, bias):
    """product(x, weight, bias) for a weight whose inputs are divided: the ranks' products are summed."""
    pg = weight.process_group
    x = _lying(x, ShardSpec([-1], [pg.tp_world_size()]), pg)
    total = reduce_input(product(x, _local(weight), None), pg)
    if bias is not None:
        total = total + _lying(bias, ReplicaSpec(), pg)
    return _made(total, pg, ReplicaSpec(), weight)


def _fits(x):
    """Activations that are whole or divided at the last dimension."""
    return not _is_sharded(x) or x.is_shard_1dcol()


@colo_op_impl(F.linear)
def _linear(input, weight, bias=None):
    if _is_sharded(weight) and weight.dim() == 2 and _fits(input):
        if weight.is_shard_1drow():
            return _columns(F.linear, input, weight, bias)
        if weight.is_shard_1dcol():
            return _rows(F.linear, input, weight, bias)
    return _otherwise(F.linear, input, weight, bias)


@colo_op_impl(torch.addmm)
def _addmm(input, mat1, mat2, *, beta=1, alpha=1, out=None):
    def product(x, weight, bias):
        return alpha * torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight, beta=beta, alpha=alpha)

    if out is None and _is_sharded(mat2) and _fits(mat1) and (input.dim() == 1 or not _is_sharded(input)):
        whole = not isinstance(input, ColoTensor) or input.is_replicate() or input.dim() == 1
        if mat2.is_shard_1dcol() and whole and _last_of(input) == mat2.size_global(1):
            return _columns(product, mat1, mat2, input)
        if mat2.is_shard_1drow() and whole and beta == 1:
            return _rows(product, mat1, mat2, input)
    return _otherwise(torch.addmm, input, mat1, mat2, beta=beta, alpha=alpha, **({} if out is None else {"out": out}))


def _last_of(tensor):
    return tensor.size_global(-1) if isinstance(tensor, ColoTensor) else tensor.size(-1)


def _matmul_form(func, reversed_=False):
    def implementation(input, other, **more):
        input, other = (other, input) if reversed_ else (input, other)
        if not more and _is_sharded(other) and other.dim() == 2 and input.dim() >= 2 and _fits(input):
            def product(x, weight, _):
                return torch.matmul(x, weight)

            if other.is_shard_1dcol():
                return _columns(product, input, other, None)
            if other.is_shard_1drow():
                return _rows(product, input, other, None)
        return _otherwise(torch.matmul if reversed_ else func, input, other, **more)

    return implementation


for _func in (torch.matmul, torch.mm, _Tensor.matmul, _Tensor.mm, _Tensor.__matmul__):
    colo_op_impl(_func)(_matmul_form(_func))
colo_op_impl(_Tensor.__rmatmul__)(_matmul_form(_Tensor.__rmatmul__, True))


@colo_op_impl(F.embedding)
def _embedding(input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False):
    divided = _is_sharded(weight)
    if divided and max_norm is not None:
        raise NotImplementedError("castor: an embedding with max_norm changes its weight, which is sharded here: make it a replicated one")
    if not divided or sparse or scale_grad_by_freq or _is_sharded(input):
        return _otherwise(F.embedding, input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    pg = weight.process_group
    index = _local(input) if isinstance(input, ColoTensor) else input
    if weight.is_shard_1dcol():
        return _made(F.embedding(index, _local(weight), padding_idx), pg, ShardSpec([-1], [pg.tp_world_size()]), weight)
    if not weight.is_shard_1drow():
        return _otherwise(F.embedding, input, weight, padding_idx)
    _check_index(index, weight.size_global(0))
    begin, rows = pg.tp_local_rank() * weight.size(0), weight.size(0)
    here = (index >= begin) & (index < begin + rows)
    if padding_idx is not None:
        here = here & (index != padding_idx % weight.size_global(0))
        forward_only = (index == padding_idx % weight.size_global(0)) & (index >= begin) & (index < begin + rows)
    local = F.embedding(torch.where(here, index - begin, 0), _local(weight)) * here.unsqueeze(-1)
    if padding_idx is not None:  # its row is read, and gets no gradient
        local = local + F.embedding(torch.where(forward_only, index - begin, 0), _local(weight).detach()) * forward_only.unsqueeze(-1)
    return _made(reduce_input(local, pg), pg, ReplicaSpec(), weight)


def _check_index(index, rows):
    if index.numel() and index.device.type == "cpu" and not (0 <= int(index.min()) and int(index.max()) < rows):
        raise IndexError(f"castor: an embedding of {rows} rows got an index that is not in 0 to {rows - 1}")


@colo_op_impl(F.embedding_bag)
def _embedding_bag(input, weight, offsets=None, max_norm=None, norm_type=2, scale_grad_by_freq=False, mode="mean", sparse=False,
                   per_sample_weights=None, include_last_offset=False, padding_idx=None):
    if _is_sharded(weight) and max_norm is not None:
        raise NotImplementedError("castor: an embedding_bag with max_norm changes its weight, which is sharded here: make it a replicated one")
    arguments = offsets, max_norm, norm_type, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding_idx
    if _is_sharded(weight) and weight.is_shard_1dcol() and not sparse and per_sample_weights is None and not _is_sharded(input):
        pg = weight.process_group
        index = _local(input) if isinstance(input, ColoTensor) else input
        return _made(F.embedding_bag(index, _local(weight), *arguments), pg, ShardSpec([-1], [pg.tp_world_size()]), weight)
    return _otherwise(F.embedding_bag, input, weight, *arguments)


@colo_op_impl(_Tensor.view)
def _view(self, *size):
    """`size` is the whole tensor's. What is sharded by rows or columns stays so if these stay whole; all else is gathered."""
    if not _is_sharded(self) or len(size) == 1 and isinstance(size[0], torch.dtype):
        return _otherwise(_Tensor.view, self, *size)
    old = self.size_global()
    new = list(torch.empty(old, device="meta").view(*size).shape)
    for dim, stays in ((0, self.is_shard_1drow()), (-1, self.is_shard_1dcol())):
        if stays and new and new[dim] == old[dim]:
            new[dim] = self.size(dim)
            spec = ShardSpec([dim], [self.get_tp_world_size()])
            return ColoTensor.from_torch_tensor(_local(self).view(new), ColoTensorSpec(self.process_group, spec))
    whole = self.to_replicate()
    return ColoTensor.from_torch_tensor(_local(whole).view(new), ColoTensorSpec(self.process_group))
