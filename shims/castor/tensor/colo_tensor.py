"""A tensor whose blocks lie on the ranks of a tensor-parallel group (Colossal-AI: colossalai.tensor.colo_tensor).

A ColoTensor is this rank's block: `shape` and `data` are local, size_global() is the whole tensor's. Operators give what plain
PyTorch gives with whole tensors. They are found in this order:

- the operators of castor.nn (op_wrapper.py): products, embeddings, views, with communication of their own;
- what looks at one tensor alone, or works on each element where it is: on the block;
- whole operands: PyTorch's own operator;
- all else: PyTorch's DTensor on the same blocks; what it cannot do, on gathered operands."""
import copy

import torch
from torch.utils._pytree import tree_map_only

from . import _sharded
from .compute_spec import ComputeSpec
from .const import TensorType
from .dist_spec_mgr import DistSpecManager, check, is_whole, transform
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

        return _dtensor.to_dtensor(self)

    @staticmethod
    def from_dtensor(tensor, pg=None):
        """A ColoTensor over the memory of a DTensor on a mesh of one dimension, in the same graph. `pg`: its group, by default one of
        the mesh's ranks with all of them tensor-parallel; every rank of the job calls it then."""
        if pg is None:
            ranks = tensor.device_mesh.mesh.flatten().tolist()
            pg = ProcessGroup(ranks=ranks, tp_degree=len(ranks))
        from . import _dtensor

        return _dtensor.from_dtensor(tensor, pg)

    # ---- operators

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not all(issubclass(kind, _Tensor) for kind in types):
            return NotImplemented
        handler = _COLOSSAL_OPS.get(func)
        if handler is not None:
            return handler(*args, **kwargs)
        if _sharded.is_local(func):
            with _outside():
                result = func(*args, **kwargs)
            return _with_spec(result, args[0]) if _sharded.lies_alike(func) else result
        return _sharded.call(func, args, kwargs)

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
