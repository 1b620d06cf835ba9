"""Operators on sharded ColoTensors that have no form of their own: on the blocks where elements do not meet, by DTensor
(_dtensor.py), and what that refuses on gathered operands."""
import torch
from torch.overrides import get_default_nowrap_functions
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from .dist_spec_mgr import reduce_grad

_Tensor = torch.Tensor
_outside = torch._C.DisableTorchFunctionSubclass

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


def is_local(func):
    """The call concerns the block alone."""
    attribute = _attribute(func)
    return func in _ALIKE or func in _LOCAL if attribute is None else attribute not in _ATTRIBUTES_OF_ALL


def lies_alike(func):
    """The result of a local call lies as its first operand."""
    return func in _ALIKE or _attribute(func) in _ATTRIBUTES_ALIKE


def call(func, args, kwargs):
    """What `func` gives of operands some of which are ColoTensors. Whole operands: PyTorch's own operator."""
    from .colo_tensor import ColoTensor, _wrapped

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
            return _dtensor.call(func, leaves, tree, first)
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
        return all(_alike(tensors, next(filter(is_sharded, tensors))) for tensors in _columns(leaves, tree) if any(map(is_sharded, tensors)))
    return _of_elements(name) and _alike((leaf for leaf in leaves if isinstance(leaf, _Tensor)), first)


def _columns(leaves, tree):
    """For each index, the elements of the operands that are lists of tensors."""
    args, kwargs = tree_unflatten(leaves, tree)
    return zip(*(one for one in (*args, *kwargs.values()) if isinstance(one, (list, tuple)) and any(isinstance(t, _Tensor) for t in one)))


def is_sharded(tensor):
    from .colo_tensor import ColoTensor

    return isinstance(tensor, ColoTensor) and not tensor.is_replicate()


def _alike(tensors, first):
    """Each of the tensors is divided as `first`, is a block of its shape, or a single number."""
    for tensor in tensors:
        if is_sharded(tensor) and is_sharded(first):
            if tensor.shape != first.shape or tensor.dist_spec.divisions(tensor.dim()) != first.dist_spec.divisions(first.dim()):
                return False
        elif is_sharded(tensor) or tensor.numel() != 1 and (type(tensor) is not _Tensor or tensor.shape != first.shape):
            return False
    return True


def _on_blocks(func, leaves, tree, first):
    from .colo_tensor import ColoTensor, _local, _with_spec

    def operand(leaf):
        """A single number that is to get a gradient gets those of all blocks."""
        if torch.is_grad_enabled() and isinstance(leaf, _Tensor) and leaf.requires_grad and leaf.numel() == 1 and not is_sharded(leaf):
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
    from .colo_tensor import ColoTensor, _local, _wrapped

    args, kwargs = tree_unflatten([_local(leaf.to_replicate()) if isinstance(leaf, ColoTensor) else leaf for leaf in leaves], tree)
    whole = first.to_replicate()
    return _wrapped(func(*args, **kwargs), whole, ())
