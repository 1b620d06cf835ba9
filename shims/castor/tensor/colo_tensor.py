"""A tensor whose blocks lie on the ranks of a tensor-parallel group (Colossal-AI: colossalai.tensor.colo_tensor).

A ColoTensor is this rank's block: `shape` and `data` are local, size_global() is the whole tensor's. Operators give what plain
PyTorch gives with whole tensors. They are found in this order:

- the operators of castor.nn (op_wrapper.py): products, embeddings, views, with communication of their own;
- what looks at one tensor alone, or works on each element where it is: on the block;
- whole operands: PyTorch's own operator;
- all else: PyTorch's DTensor on the same blocks; what it cannot do, on gathered operands."""
import copy

import torch
from torch.overrides import get_default_nowrap_functions
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from .compute_spec import ComputeSpec
from .const import TensorType
from .dist_spec_mgr import DistSpecManager, check, is_whole, reduce_grad, transform
from .distspec import DistPlacementPattern, ReplicaSpec
from .op_wrapper import _COLOSSAL_OPS
from .process_group import ProcessGroup
from .tensor_spec import ColoTensorSpec

__all__ = ["ColoTensor"]

_Tensor = torch.Tensor
_outside = torch._C.DisableTorchFunctionSubclass


class ColoTensor(torch.Tensor):
    """A tensor with a ColoTensorSpec.

    Args:
        data: this rank's block, a torch.Tensor of any shape and dtype; its memory is shared.
        spec: a ColoTensorSpec; by default ProcessGroup() and Replica.

    The new tensor is a leaf that requires gradients if `data` does. ValueError: the specification does not fit."""

    def __new__(cls, data, spec=None):
        with _outside():
            return _Tensor._make_subclass(cls, data, data.requires_grad)

    def __init__(self, data, spec=None):
        self._set(spec)

    def _set(self, spec):
        spec = ColoTensorSpec(ProcessGroup()) if spec is None else spec
        self.process_group, self.dist_spec, self.compute_spec = spec.pg, spec.dist_attr, spec.compute_attr
        self._type = TensorType.NONMODEL
        if not is_whole(self.dist_spec, self.process_group):
            check(self.dist_spec, self.size_global(), self.process_group)

    @staticmethod
    def from_torch_tensor(tensor, spec=None):
        """A ColoTensor of `tensor`, this rank's block, in the same graph of gradients."""
        with _outside():
            made = tensor.as_subclass(ColoTensor)
        made._set(spec)
        return made

    # ---- what it is

    def get_process_group(self):
        return self.process_group

    def get_tp_world_size(self):
        return self.process_group.tp_world_size()

    def get_dp_world_size(self):
        return self.process_group.dp_world_size()

    def get_tensor_spec(self):
        return ColoTensorSpec(self.process_group, self.dist_spec, self.compute_spec)

    def has_compute_spec(self):
        return self.compute_spec is not None

    def has_compute_pattern(self, compute_pattern):
        return self.compute_spec is not None and self.compute_spec.compute_pattern == compute_pattern

    def is_model_data(self):
        return self._type == TensorType.MODEL

    def is_replicate(self):
        """Every rank has the whole tensor; always so in a tensor-parallel group of one rank."""
        return is_whole(self.dist_spec, self.process_group) or self.dist_spec.partitions() == 1

    def is_sharded(self):
        return self.dist_spec.placement is DistPlacementPattern.SHARD

    def _is_divided_at(self, dim):
        return self.is_sharded() and self.dist_spec.positive_dims(self.dim()) == [dim]

    def is_shard_1drow(self):
        """Divided at its first dimension alone."""
        return self._is_divided_at(0)

    def is_shard_1dcol(self):
        """Divided at its last dimension alone."""
        return self._is_divided_at(self.dim() - 1)

    def size_global(self, dim=None):
        """The shape of the whole tensor (torch.Size), or the size of one dimension of it."""
        shape = list(self.shape)
        if not is_whole(self.dist_spec, self.process_group):
            for divided, parts in self.dist_spec.divisions(len(shape)):
                shape[divided] *= parts
        return torch.Size(shape) if dim is None else shape[dim]

    def numel_global(self):
        return self.size_global().numel()

    # ---- to lie elsewhere

    def redistribute(self, dist_spec, pg=None):
        """A ColoTensor of the same whole tensor that lies as `dist_spec` says. Differentiable. Every rank of the tensor-parallel
        group calls it.

        With another group `pg` the tensor is first gathered in its own one. Dimensions must divide into equal parts, else:
        ValueError."""
        whole, group = self, self.process_group
        if pg is not None and pg != group:
            whole, group = self.to_replicate(), pg
        local = DistSpecManager.handle_trans_spec(_local(whole), whole.dist_spec, dist_spec, group)
        return ColoTensor.from_torch_tensor(local, ColoTensorSpec(group, dist_spec, self.compute_spec))

    def to_replicate(self):
        return self.redistribute(ReplicaSpec())

    def to_replicate_(self):
        self.set_dist_spec(ReplicaSpec())

    def set_dist_spec(self, dist_spec):
        """Changes this tensor, and its gradient, to lie as `dist_spec` says. RuntimeError: it is the result of an operator that is
        to be differentiated; use redistribute()."""
        if self.grad_fn is not None:
            raise RuntimeError("castor: set_dist_spec() changes a tensor in place, and this one has a grad_fn: use redistribute()")
        old, group = self.dist_spec, self.process_group
        with torch.no_grad(), _outside():
            data = transform(_Tensor.detach(self), old, dist_spec, group)
            gradient = None if self.grad is None else transform(self.grad, old, dist_spec, group)
            self.grad = None
            self.data = data
            self.grad = gradient
        self.dist_spec = dist_spec

    def set_compute_spec(self, compute_spec):
        if compute_spec is not None and not isinstance(compute_spec, ComputeSpec):
            raise TypeError(f"castor: {compute_spec!r} is no ComputeSpec")
        self.compute_spec = compute_spec

    def set_tensor_spec(self, dist_spec, compute_spec=None):
        if dist_spec is not None:
            self.set_dist_spec(dist_spec)
        if compute_spec is not None:
            self.set_compute_spec(compute_spec)

    def set_process_group(self, pg):
        """Another group for a replicated tensor. RuntimeError: it is sharded, or its group divides both ways (tp and dp above
        1), so that its ranks need not hold the same."""
        if pg == self.process_group:
            return
        if not self.is_replicate():
            raise RuntimeError("castor: set_process_group() needs a replicated tensor: call to_replicate_() first")
        if self.get_tp_world_size() != 1 and self.get_dp_world_size() != 1:
            raise RuntimeError(f"castor: set_process_group() needs a tensor whose group has tp 1 or dp 1: {self.process_group}")
        self.process_group = pg

    # ---- PyTorch's DTensor

    def to_dtensor(self):
        """A DTensor over the same memory, in the same graph. RuntimeError: more than one dimension is divided."""
        if not is_whole(self.dist_spec, self.process_group) and len(self.dist_spec.dims) != 1:
            raise RuntimeError(f"castor: {self.dist_spec} has no DTensor of one mesh dimension: redistribute() it first")
        from . import _dtensor

        return _dtensor.to_dtensor(_local(self), self)

    @staticmethod
    def from_dtensor(tensor, pg=None):
        """A ColoTensor over the memory of a DTensor on a mesh of one dimension, in the same graph. `pg`: its group, by default one of
        the mesh's ranks with all of them tensor-parallel; every rank of the job calls it then."""
        if pg is None:
            ranks = tensor.device_mesh.mesh.flatten().tolist()
            pg = ProcessGroup(ranks=ranks, tp_degree=len(ranks))
        from . import _dtensor

        return ColoTensor.from_torch_tensor(*_dtensor.from_dtensor(tensor, pg))

    # ---- operators

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not all(issubclass(kind, _Tensor) for kind in types):
            return NotImplemented
        handler = _COLOSSAL_OPS.get(func)
        if handler is not None:
            return handler(*args, **kwargs)
        if _is_local(func):
            with _outside():
                result = func(*args, **kwargs)
            return _with_spec(result, args[0]) if _lies_alike(func) else result
        return _call(func, args, kwargs)

    # ---- copies

    def __deepcopy__(self, memo):
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError("castor: only ColoTensors that a script made itself (leaves of the graph) can be deep-copied")
        with _outside():
            made = _rebuilt(type(self), _Tensor.detach(self).clone(), self.requires_grad, self._state())
            made.grad = None if self.grad is None else self.grad.clone()
        memo[id(self)] = made
        return made

    def __reduce_ex__(self, protocol):
        with _outside():
            return _rebuilt, (type(self), _Tensor.detach(self).as_subclass(_Tensor), self.requires_grad, self._state())

    def _state(self):
        return {"spec": copy.copy(self.get_tensor_spec()), "type": self._type}

    def __repr__(self, *, tensor_contents=None):
        return f"{type(self).__name__}({_local(self.detach())!r}, {self.dist_spec}, {self.process_group})"


def _rebuilt(cls, data, requires_grad, state):
    made = _Tensor._make_subclass(cls, data, requires_grad)
    made._set(state["spec"])
    made._type = state["type"]
    return made


def _local(tensor):
    """This rank's block, in the same graph."""
    with _outside():
        return tensor.as_subclass(_Tensor)


def _with_spec(result, like):
    """A tensor that lies as `like` does."""
    if not isinstance(result, _Tensor) or isinstance(result, ColoTensor):
        return result
    return ColoTensor.from_torch_tensor(result, ColoTensorSpec(like.process_group, like.dist_spec))


def _wrapped(results, like, inputs):
    """Results of an operator on whole tensors: replicated, in the same group."""

    def wrap(result):
        if isinstance(result, ColoTensor) or any(result is one for one in inputs):
            return result
        kept = like.is_sharded() and result.dim() == like.dim()  # in a group of one rank any specification is whole
        return ColoTensor.from_torch_tensor(result, ColoTensorSpec(like.process_group, like.dist_spec if kept else ReplicaSpec()))

    return tree_map_only(_Tensor, wrap, results)


# ---- operators on sharded ColoTensors that have no form of their own: on the blocks where elements do not meet, by DTensor (_dtensor.py), and what that
# refuses on gathered operands

# What concerns the block alone and gives a tensor that lies as the first operand does.
_ALIKE = frozenset({
    _Tensor.detach, _Tensor.clone, _Tensor.contiguous, _Tensor.to, _Tensor.cuda, _Tensor.cpu, _Tensor.float, _Tensor.double, _Tensor.half,
    _Tensor.bfloat16, _Tensor.requires_grad_, _Tensor.pin_memory, _Tensor.type_as, _Tensor.zero_, _Tensor.fill_, _Tensor.normal_,
    _Tensor.uniform_, torch.clone, torch.detach, torch.empty_like, torch.zeros_like, torch.ones_like, torch.full_like, torch.rand_like,
    torch.randn_like,
})
# What concerns the block alone and gives no tensor.
_LOCAL = frozenset({
    _Tensor.size, _Tensor.dim, _Tensor.ndimension, _Tensor.numel, _Tensor.nelement, _Tensor.element_size, _Tensor.stride,
    _Tensor.storage_offset, _Tensor.data_ptr, _Tensor.untyped_storage, _Tensor.is_contiguous, _Tensor.is_floating_point, _Tensor.is_complex,
    _Tensor.is_signed, _Tensor.get_device, _Tensor.item, _Tensor.tolist, _Tensor.numpy, _Tensor.__len__, _Tensor.__array__, _Tensor.__hash__,
    _Tensor.register_hook, _Tensor.retain_grad, _Tensor.backward, _Tensor.is_pinned, _Tensor.is_shared, _Tensor.share_memory_,
    _Tensor.register_post_accumulate_grad_hook, _Tensor.record_stream, _Tensor.__format__, _Tensor.__dlpack__, _Tensor.__dlpack_device__,
    torch.numel, torch.is_floating_point, torch.is_complex, *get_default_nowrap_functions(),
})
_ATTRIBUTES_ALIKE = frozenset({"data", "grad"})
_ATTRIBUTES_OF_ALL = frozenset({"T", "mT", "H", "mH", "real", "imag"})


def _attribute(func):
    """The attribute that is read, set or deleted; None: `func` is no such access."""
    return func.__self__.__name__ if getattr(func, "__name__", None) in ("__get__", "__set__", "__delete__") else None


def _is_local(func):
    """The call concerns the block alone."""
    attribute = _attribute(func)
    return func in _ALIKE or func in _LOCAL if attribute is None else attribute not in _ATTRIBUTES_OF_ALL


def _lies_alike(func):
    """The result of a local call lies as its first operand."""
    return func in _ALIKE or _attribute(func) in _ATTRIBUTES_ALIKE


def _call(func, args, kwargs):
    """What `func` gives of operands some of which are ColoTensors. Whole operands: PyTorch's own operator."""
    leaves, tree = tree_flatten((args, kwargs))
    colo = [leaf for leaf in leaves if isinstance(leaf, ColoTensor)]
    if all(tensor.is_replicate() for tensor in colo):
        with _outside():
            return _wrapped(func(*args, **kwargs), colo[0], leaves)
    groups = {tensor.process_group for tensor in colo if not tensor.is_replicate()}
    if len(groups) > 1:
        raise ValueError(f"castor: {_name(func)} of tensors that are sharded over different groups: {groups}: redistribute one of them")
    first = next(tensor for tensor in colo if not tensor.is_replicate())
    if _in_blocks(func, leaves, tree, first):
        return _on_blocks(func, leaves, tree, first)
    if _writes(func, kwargs):
        raise NotImplementedError(f"castor: {_name(func)} writes to a sharded ColoTensor what does not lie as it does: "
                                  "use an operator that gives a new tensor, or redistribute the operands alike")
    name = _attribute(func) or _name(func)
    if name == "_foreach_norm":
        return [torch.linalg.vector_norm(tensor, *args[1:], **kwargs) for tensor in args[0]]
    if name in _BY_DTENSOR and all(len(tensor.dist_spec.dims) == 1 for tensor in colo if not tensor.is_replicate()):
        from . import _dtensor

        try:
            return _dtensor.call(ColoTensor, _local, func, leaves, tree, first)
        except (NotImplementedError, RuntimeError, AssertionError, ValueError):
            pass  # DTensor refuses it so; if the operands are at fault, they are so when gathered
    return _gathered(func, leaves, tree, first)


def _name(func):
    return getattr(func, "__name__", str(func))


def _writes(func, kwargs):
    name = _name(func)
    operator = name.startswith("__i") and name not in ("__invert__", "__index__", "__int__")
    return operator or name.endswith("_") and not name.endswith("__") or name == "__setitem__" or kwargs.get("out") is not None


# Operators that work on each element where it is, by the names of their forms: a, a_, and of operators __a__, __ra__, __ia__.
_OF_ELEMENTS = frozenset(
    "abs add addcdiv addcmul allclose and ceil clamp clamp_max clamp_min conj copy cos div eq equal erf exp expm1 floor floordiv fmod ge gelu gt "
    "invert isclose isfinite isinf isnan le leaky_relu lerp log log1p logical_and logical_not logical_or lt masked_fill maximum minimum mul "
    "multiply ne neg negative or pos pow reciprocal relu relu6 remainder round rsqrt rsub sigmoid sign silu sin softplus sqrt square sub "
    "subtract tan tanh threshold true_divide truediv where xor".split())


# What DTensor divides well, backward included: tests compare each with whole tensors. (Not all that it accepts is right: the gradient of its
# mse_loss is not, and some operators have no backward.) Random numbers are not here: drawn for the whole tensor, they are plain PyTorch's.
_BY_DTENSOR = frozenset(
    "T mT bmm cat einsum expand flatten __getitem__ layer_norm linear addmm log_softmax matmul __matmul__ __rmatmul__ mean mm norm permute reshape "
    "scaled_dot_product_attention softmax squeeze stack sum t transpose unflatten unsqueeze vector_norm".split())


def _of_elements(name):
    bare = name.strip("_")
    return bare in _OF_ELEMENTS or name.startswith("__") and bare[0] in "ir" and bare[1:] in _OF_ELEMENTS


def _in_blocks(func, leaves, tree, first):
    """The call works on each element where it is, and its tensors lie alike: the blocks can be its operands."""
    name = _name(func)
    if name.startswith("_foreach_") and name != "_foreach_norm":
        return all(_alike(tensors, next(filter(_is_sharded, tensors))) for tensors in _columns(leaves, tree) if any(map(_is_sharded, tensors)))
    return _of_elements(name) and _alike((leaf for leaf in leaves if isinstance(leaf, _Tensor)), first)


def _columns(leaves, tree):
    """For each index, the elements of the operands that are lists of tensors."""
    args, kwargs = tree_unflatten(leaves, tree)
    return zip(*(one for one in (*args, *kwargs.values()) if isinstance(one, (list, tuple)) and any(isinstance(t, _Tensor) for t in one)))


def _is_sharded(tensor):
    return isinstance(tensor, ColoTensor) and not tensor.is_replicate()


def _alike(tensors, first):
    """Each of the tensors is divided as `first`, is a block of its shape, or a single number."""
    for tensor in tensors:
        if _is_sharded(tensor) and _is_sharded(first):
            if tensor.shape != first.shape or tensor.dist_spec.divisions(tensor.dim()) != first.dist_spec.divisions(first.dim()):
                return False
        elif _is_sharded(tensor) or tensor.numel() != 1 and (type(tensor) is not _Tensor or tensor.shape != first.shape):
            return False
    return True


def _on_blocks(func, leaves, tree, first):
    def operand(leaf):
        """A single number that is to get a gradient gets those of all blocks."""
        if torch.is_grad_enabled() and isinstance(leaf, _Tensor) and leaf.requires_grad and leaf.numel() == 1 and not _is_sharded(leaf):
            return reduce_grad(_local(leaf), first.process_group)
        return leaf

    args, kwargs = tree_unflatten([operand(leaf) for leaf in leaves], tree)
    with _outside():
        results = func(*args, **kwargs)
    if _name(func).startswith("_foreach_") and results is not None:
        likes = (next((t for t in tensors if isinstance(t, ColoTensor)), first) for tensors in _columns(leaves, tree))
        return [_with_spec(result, like) for result, like in zip(results, likes)]
    return tree_map_only(_Tensor, lambda result: _with_spec(result, first), results)


def _gathered(func, leaves, tree, first):
    args, kwargs = tree_unflatten([_local(leaf.to_replicate()) if isinstance(leaf, ColoTensor) else leaf for leaf in leaves], tree)
    whole = first.to_replicate()
    return _wrapped(func(*args, **kwargs), whole, ())
