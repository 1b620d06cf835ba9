"""PyTorch's random operations in a step over a split batch: drawn as if one process drew them for the whole batch.

Every operation that fills a tensor from a generator is intercepted at the dispatcher's key BackendSelect. All calls pass it
right before their kernel, from Python, C++ or compiled code alike. randomness.py says which numbers belong to samples."""
import functools
import weakref

import torch

from . import randomness

_BEFORE_KERNELS = "BackendSelect"
_BY_AUTOGRAD = {f"Autograd{device}": torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, device)) for device in ("CPU", "CUDA")}
_AFTER = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
_STREAMS = 0x9E3779B97F4A7C15  # between the seeds of two ranks' streams

# Every element takes the same count of numbers, so that a whole batch can be drawn without its values.
_STEADY = ("normal", "multinomial")

_job = None
_library = None


def _drawable(tensor):
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided and tensor.device.type != "meta"


def _rows(batch, dimension, rows):
    return dimension, batch.first * rows, batch.size * rows


def whole_like(tensor, dimension, length):
    """Memory for `length` rows, in the order of the tensor's elements. If it has one row, only the row's stride shows that order:
    PyTorch calls such a tensor contiguous either way."""
    shape = [*tensor.shape]
    shape[dimension] = length
    inner = tensor.stride(dimension)
    beyond = inner * tensor.shape[dimension]
    strides = [s // tensor.shape[dimension] * length if s >= beyond and s and d != dimension else s for d, s in enumerate(tensor.stride())]
    return torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)


def _widened(tensor, dims, place):
    """The tensor extended to the whole batch, if it has this rank's rows. The other rows repeat these."""
    batch, dimension, rows = place
    from_end = dims - dimension
    if tensor.dim() < from_end or tensor.shape[-from_end] != batch.size * rows:
        return tensor
    index = (torch.arange(batch.count * rows, device=tensor.device) - batch.first * rows) % (batch.size * rows)
    return tensor.index_select(tensor.dim() - from_end, index)


def _stream_of_rank(generator, device):
    """A generator of this rank's, seeded by a number that all ranks draw."""
    seed = int(torch.empty((), dtype=torch.int64, device=device).random_(generator=generator))
    made = torch.Generator(device)
    made.manual_seed((seed + _STREAMS * _job.rank) % (1 << 63))
    return made


class _Operation:
    """A random operation of PyTorch's, by its schema."""

    def __init__(self, op):
        self.op = op
        self.names = [argument.name for argument in op._schema.arguments]

    def plainly(self, keys, args, kwargs):
        return self.op.redispatch(keys & _AFTER, *args, **kwargs)

    def get(self, name, args, kwargs):
        at = self.names.index(name)
        return args[at] if at < len(args) else kwargs.get(name)

    def loosely(self, keys, args, kwargs, device):
        """Draws from this rank's own stream."""
        randomness.note_loose()
        with randomness.plain():
            stream = _stream_of_rank(self.get("generator", args, kwargs), device)
        at = self.names.index("generator")
        if at < len(args):
            args = [*args[:at], stream, *args[at + 1:]]
        else:
            kwargs = {**kwargs, "generator": stream}
        return self.plainly(keys, args, kwargs)


class _Fill(_Operation):
    """Each element of a tensor is drawn anew."""

    def __call__(self, keys, tensor, *args, **kwargs):
        if not randomness.splits() or not _drawable(tensor):
            return self.plainly(keys, (tensor, *args), kwargs)
        if self.op._overloadname == "from" and tensor.dim() == 1 and args[:2] == (-(1 << 63), (1 << 63) - 1):
            return self._seeds(keys, tensor, args, kwargs)
        place = None if randomness.is_registered(tensor) else randomness.place_of(tuple(tensor.shape), randomness.here.source)
        if place is None:
            return self.plainly(keys, (tensor, *args), kwargs)
        if place is randomness.LOOSE:
            return self.loosely(keys, (tensor, *args), kwargs, tensor.device)
        batch, dimension, rows = place
        whole = whole_like(tensor, dimension, batch.count * rows)
        args = [_widened(a.expand(tensor.shape), tensor.dim(), place) if isinstance(a, torch.Tensor) else a for a in args]
        self.plainly(keys, (whole, *args), kwargs)
        tensor.copy_(whole.narrow(*_rows(*place)))
        return tensor

    def _seeds(self, keys, tensor, args, kwargs):
        """Seeds for code that torch.compile made, which draws random numbers in a way of its own."""
        randomness.note_loose()
        self.plainly(keys, (tensor, *args), kwargs)
        offset = _STREAMS * _job.rank % (1 << 64)
        return tensor.add_(offset - (1 << 64) if offset >= 1 << 63 else offset)


class _Steady(_Operation):
    """Numbers drawn for tensors of the samples, into a new tensor or `out`."""

    def __call__(self, keys, *args, **kwargs):
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if not randomness.splits() or not all(_drawable(t) for t in tensors):
            return self.plainly(keys, args, kwargs)
        shape = tuple(torch.broadcast_shapes(*(t.shape for t in tensors)))
        if self.op._opname == "multinomial" and len(shape) < 2:
            return self.plainly(keys, args, kwargs)  # of one distribution: a choice
        place = randomness.place_of(shape, next((t for t in tensors if t.grad_fn is not None), tensors[0]))
        if place is randomness.LOOSE:
            return self.loosely(keys, args, kwargs, tensors[0].device)
        if place is None:
            with randomness.plain():
                return self.plainly(keys, args, kwargs)
        out = kwargs.get("out")
        wide = {**kwargs} if out is None else {**kwargs, "out": out.new_empty(0)}
        with randomness.plain():
            made = self.plainly(keys, [_widened(a, len(shape), place) if isinstance(a, torch.Tensor) else a for a in args], wide)
        made = made.narrow(*_rows(*place))
        return made.clone() if out is None else out.resize_(made.shape).copy_(made)


class _Unsteady(_Operation):
    """The count of numbers for an element depends on its value, so only the rank's own stream can be used."""

    def __call__(self, keys, tensor, *args, **kwargs):
        draws = "training" not in self.names or self.get("training", (tensor, *args), kwargs)
        if not draws or not randomness.splits() or not _drawable(tensor) or _none_of_samples(self, tensor):
            return self.plainly(keys, (tensor, *args), kwargs)
        return self.loosely(keys, (tensor, *args), kwargs, tensor.device)


def _none_of_samples(operation, tensor):
    if operation.op._opname == "_sample_dirichlet" and tensor.dim() < 2:
        return True
    return randomness.place_of(tuple(tensor.shape), tensor) is None


class _Permutation(_Operation):
    """A permutation of the local batch's samples: a permutation of the whole one, of which the local indices are kept."""

    def __call__(self, keys, count, *args, **kwargs):
        out = kwargs["out"]
        batch = randomness.latest() if randomness.splits() else None
        if batch is None or count != batch.size or kwargs.get("generator") is not None or not _drawable(out):
            return self.plainly(keys, (count, *args), kwargs)
        randomness.note_loose()
        whole = torch.empty(batch.count, dtype=out.dtype, device=out.device)
        self.plainly(keys, (batch.count, *args), {**kwargs, "out": whole})
        return out.resize_(count).copy_(whole[(whole >= batch.first) & (whole < batch.last)] - batch.first)


class _For(_Operation):
    """An operation that draws numbers for another tensor, `source`."""

    def __call__(self, keys, source, *args, **kwargs):
        outer, randomness.here.source = randomness.here.source, source if randomness.splits() and _drawable(source) else None
        try:
            return self.plainly(keys, (source, *args), kwargs)
        finally:
            randomness.here.source = outer


class _Dropout(_For):
    """A dropout made of other operations, which autograd records: calls PyTorch's own function behind the key of a device."""

    def __init__(self, op, behind):
        super().__init__(op)
        self.behind = behind

    def plainly(self, keys, args, kwargs):
        return self.op.redispatch(self.behind, *args, **kwargs)


class _FusedDropout(_For):
    """One that a device computes with numbers that its kernel draws: (result, mask). The host's draws them by another operation."""

    def __call__(self, keys, tensor, p, train):
        if not tensor.is_cuda or train is False or not randomness.splits() or not _drawable(tensor):
            return super().__call__(keys, tensor, p, train)
        place = randomness.place_of(tuple(tensor.shape), tensor)
        if place is None:
            return self.plainly(keys, (tensor, p, train), {})
        if place is randomness.LOOSE:
            randomness.note_loose()
            with randomness.plain():
                stream = _stream_of_rank(None, tensor.device)
                mask = torch.empty_like(tensor, dtype=torch.bool).bernoulli_(1 - p, generator=stream)
        else:
            batch, dimension, rows = place
            whole = whole_like(tensor, dimension, batch.count * rows).fill_(1)
            mask = self.plainly(keys, (whole, p, train), {})[1].narrow(*_rows(*place)).contiguous()
        return torch.ops.aten.native_dropout_backward(tensor, mask, 0.0 if p == 1 else 1 / (1 - p)), mask


class _Unseen(_Operation):
    """A device's kernel draws numbers, if `dropout_p` is not 0, which nobody can divide: each rank's are its own."""

    def __call__(self, keys, tensor, *args, **kwargs):
        if not tensor.is_cuda or not self.get("dropout_p", (tensor, *args), kwargs) or not randomness.splits():
            return self.plainly(keys, (tensor, *args), kwargs)
        randomness.note_loose()
        generator = torch.cuda.default_generators[tensor.device.index]
        with randomness.plain():
            stream = _stream_of_rank(None, tensor.device)
        state = generator.get_state()
        generator.set_state(stream.get_state())
        try:
            with randomness.plain():
                return self.plainly(keys, (tensor, *args), kwargs)
        finally:
            generator.set_state(state)


def _kind_of(op):
    """The class for an operation, by its schema and its kernels; None: other operations draw for it."""

    def has(key):
        return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)

    arguments = op._schema.arguments
    if _draws_unseen(op._schema):
        return _Unseen if has("CUDA") else None
    if _is_dropout(op._schema):
        return _Dropout if has("CompositeImplicitAutograd") else _FusedDropout
    if has(_BEFORE_KERNELS) or has("CompositeImplicitAutograd"):
        return None
    if has("CPU") and op._opname == "randperm":
        return _Permutation
    if has("CPU") and op._opname in _STEADY:
        return None if op._opname == "normal" and not any(str(a.type) == "Tensor" and not a.is_out for a in arguments) else _Steady
    if str(arguments[0].type) != "Tensor" or any(a.is_out for a in arguments):
        return None
    if not has("CPU"):
        return _For
    written = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    return _Fill if written == ["self"] else _Unsteady


def _is_dropout(schema):
    return [a.name for a in schema.arguments][1:] == ["p", "train"]


def _draws_unseen(schema):
    """Attention that one kernel computes."""
    names = [a.name for a in schema.arguments]
    return "dropout_p" in names and names[0] == "query" and str(schema.returns[0].type) == "Tensor"


@functools.cache
def random_operations():
    """PyTorch's: (operation, its class) of those that take a generator in one of their forms, and of dropouts and attention, which take none."""
    found = []
    schemas = [schema for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::")]
    names = {schema.name for schema in schemas if any(a.name == "generator" for a in schema.arguments)}
    for schema in schemas:
        if (schema.name in names or _is_dropout(schema) or _draws_unseen(schema)) and torch._C._dispatch_has_kernel(f"{schema.name}.{schema.overload_name}".rstrip(".")):
            op = getattr(getattr(torch.ops.aten, schema.name.removeprefix("aten::")), schema.overload_name or "default")
            kind = _kind_of(op)
            if kind is not None:
                found.append((op, kind))
    return found


def install(job):
    global _job, _library
    _job = weakref.proxy(job)
    randomness.install(job)
    _library = torch.library.Library("aten", "IMPL")
    for op, kind in random_operations():
        name = op.name().removeprefix("aten::")
        if kind is _Dropout:
            for key, behind in _BY_AUTOGRAD.items():
                _library.impl(name, kind(op, behind), key, with_keyset=True)
        else:
            _library.impl(name, kind(op), _BEFORE_KERNELS, with_keyset=True)
