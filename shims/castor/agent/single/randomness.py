"""Random numbers of a step over a batch that is split: drawn as if one process drew them for the whole batch.

Every operation that fills a tensor from a generator comes to the dispatcher's key BackendSelect, which all calls pass right
before their kernel, from Python, C++ or compiled code alike. What belongs to the samples of this rank's part is drawn in the
whole batch's shape, and the part's rows are kept: then the numbers are the single process's, bit for bit, and all ranks'
generators stay in one state. What belongs to none (a coin, a permutation of layers) is drawn as it stands, alike on all ranks.

Which dimension is the samples' follows from the shape, and from the tensor that the numbers are drawn for, where there is
one (dropout, randn_like). Nothing else tells: a tensor of the script's whose first dimension only happens to be as long as the
part is taken for one of samples."""
import contextlib
import sys
import threading
import weakref

import torch
from torch.utils._pytree import tree_flatten

from .. import core
from ..core import store

_BEFORE_KERNELS = "BackendSelect"
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_AFTER = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
_STREAMS = 0x9E3779B97F4A7C15  # between the seeds of two ranks' streams
_NODES = 64  # of a graph that are looked at, at most
_PARTS = 4  # batches of several loaders, in one step
_SITES = 1000

# Each element takes as many numbers as any other, so that a whole batch can be drawn without its values.
_STEADY = ("normal", "multinomial")


class Part:
    """Rows [first, last) of a batch of `count`, and what its tensors' other dimensions are."""

    def __init__(self, first, last, count):
        self.first, self.last, self.count, self.size = first, last, count, last - first
        self.lengths = {1}  # other dimensions
        self.blocks = set()  # their products, by which a first dimension may be longer than the part
        self.whole_drawn = False  # the script draws as many as the whole batch has, on each rank

    def look_at(self, data):
        for leaf in tree_flatten(data)[0]:
            block = 1
            for length in tuple(getattr(leaf, "shape", ()))[1:]:
                block *= length
                self.lengths.add(length)
                self.blocks.add(block)

    def dimension(self, shape, certain):
        """(dimension of the samples, rows for each of them); None: there is none. `certain`: there must be one."""
        first, size = shape[0], self.size
        if first == size and (certain or _varies(shape)):
            return 0, 1
        if len(shape) > 1 and shape[1] == size and (certain or first in self.lengths):
            return 1, 1
        rows, rest = divmod(first, size)
        if certain:
            if rest == 0 and not (first == self.count and self.whole_drawn):
                return 0, rows
            return next(((d, 1) for d in range(2, len(shape)) if shape[d] == size), None)
        if first == self.count:
            self.whole_drawn = True
        elif rest == 0 and size > 1 and rows in self.blocks:
            return 0, rows
        return None


class _Here(threading.local):
    plain = 0  # draws are taken as they stand
    source = None  # the tensor that numbers are drawn for


_here = _Here()
_job = None
_library = None
_parts = []  # of the step, the latest last
_origin = _aside = lambda: None  # weak references to the iterators that gave the last part, and since then whole batches
_used = False  # a backward has used them
_waiting = 0  # batches that the script has, and no backward has used
_ended = False  # there are no more
_loose = False
_fixed = set()  # (place in the script, shape) that were drawn while the part had another length
_of_samples = set()  # the same without the first dimension, which has been the part's
_parameters = (0, {})  # how many are registered, and address: parameter


# ---- what the loaders and the job tell


def begin(iterator, first, last, count):
    """The script gets rows [first, last) of a batch of `count` from an iterator, which is a weak reference."""
    _begin(iterator)
    _parts.append(Part(first, last, count))
    del _parts[:-_PARTS]


def begin_plain(iterator):
    """The script gets a whole batch, to train on it: each rank draws what the single process does."""
    _begin(iterator)
    _parts.clear()


def _begin(iterator):
    global _used, _waiting, _ended, _origin, _aside
    _origin, _aside, _ended = iterator, lambda: None, False
    if _used:
        _parts.clear()
        _used, _waiting = False, 0
    _waiting += 1


def look_at(data):
    if _parts:
        _parts[-1].look_at(data)


def begin_whole(iterator):
    """The script gets a batch that is not split, to look at."""
    global _aside
    _aside = iterator


def end(iterator):
    """There are no more batches. Returns whether the script has some that it has not trained on (list(loader))."""
    global _aside, _ended
    if _aside() is iterator:
        _aside = lambda: None  # noqa: E731
    if _origin() is iterator:
        _ended = True
        _forget_used()
    return _waiting > 0


def used():
    global _used, _waiting
    _used, _waiting = True, max(0, _waiting - 1)
    _forget_used()


def _forget_used():
    global _origin
    if _ended and not _waiting:
        _origin = lambda: None  # noqa: E731
        _parts.clear()


def note_loose():
    global _loose
    _loose = True


def reset():
    global _loose
    _loose = False


def drawn_loosely():
    """Whether this rank has drawn numbers since the last call, or reset(), that are not the single process's."""
    loose = _loose
    reset()
    return loose


@contextlib.contextmanager
def plain():
    _here.plain += 1
    try:
        yield
    finally:
        _here.plain -= 1


def splits():
    """Draws belong to a step over a batch that is split."""
    if not _parts or _here.plain or _job.distributed or not store.active():
        return False
    return _aside() is None or torch.is_grad_enabled() and not _job.evaluating


# ---- whose numbers they are


def _site():
    """Where the script, or a library of its, draws."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(core.PACKAGE_FOLDER):
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def _varies(shape):
    """A first dimension as long as the part is no constant of the script's."""
    site = _site()
    if (site, shape) in _fixed:
        return False
    if shape[0] > 1:
        _remember(_of_samples, (site, shape[1:]))
        return True
    return len(shape) > 1 or (site, ()) in _of_samples  # one number is a coin, but where there was one for each sample before


def _remember(known, what):
    if len(known) < _SITES:
        known.add(what)


def _is_registered(tensor):
    global _parameters
    if isinstance(tensor, torch.nn.Parameter) or store.entry_of(tensor) is not None:
        return True
    entries = _job.synchronizer.entries if _job.synchronizer is not None else ()
    if _parameters[0] != len(entries):
        known = [(e.parameter(), e.parameter) for e in entries]
        _parameters = len(entries), {p.data_ptr(): reference for p, reference in known if p is not None}
    p = _parameters[1].get(tensor.data_ptr(), lambda: None)()
    return p is not None and p.data_ptr() == tensor.data_ptr()


def _of_parameters(tensor):
    """It was made of parameters alone, as far as its graph can be followed, or of one and numbers of the same shape."""
    if tensor.grad_fn is None:
        return _is_registered(tensor)
    reached, seen, of_its_shape = [tensor.grad_fn], set(), False
    mixed = False
    while reached:
        node = reached.pop()
        if node in seen:
            continue
        seen.add(node)
        if len(seen) > _NODES or type(node).__name__.startswith(("Embedding", "Index", "Gather")):
            return False
        if any(parent is None for parent, _ in node.next_functions):
            if not type(node).__name__.startswith(_ELEMENTWISE):
                return False
            mixed = True
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            if not _is_registered(leaf):
                return False
            of_its_shape = of_its_shape or leaf.shape == tensor.shape
        reached += [parent for parent, _ in node.next_functions if parent is not None]
    return of_its_shape or not mixed


_ELEMENTWISE = ("MulBackward", "DivBackward", "AddBackward", "SubBackward")


_LOOSE = object()


def place_of(shape, source=None):
    """(part, dimension, rows for each sample) of numbers of this shape; None: they are no samples'; _LOOSE: they are, but
    nothing tells which are whose."""
    if not shape or 0 in shape:
        return None
    certain = source is not None and source.grad_fn is not None
    for part in reversed(_parts):
        found = part.dimension(shape, certain)
        if found is not None:
            return None if source is not None and _of_parameters(source) else (part, *found)
    if certain and not any(part.whole_drawn and part.count == shape[0] for part in _parts):
        return None if _of_parameters(source) else _LOOSE
    if source is None:
        _remember(_fixed, (_site(), shape))
    return None


def _drawable(tensor):
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided and tensor.device.type != "meta"


# ---- drawing


def _rows(part, dimension, rows):
    return dimension, part.first * rows, part.size * rows


def _whole_like(tensor, dimension, length):
    """Memory for `length` rows, in the order in which the tensor's elements lie. Where it has one row, that order is in the
    row's stride alone: PyTorch calls such a tensor contiguous either way."""
    shape = [*tensor.shape]
    shape[dimension] = length
    inner = tensor.stride(dimension)
    beyond = inner * tensor.shape[dimension]
    strides = [s // tensor.shape[dimension] * length if s >= beyond and s and d != dimension else s for d, s in enumerate(tensor.stride())]
    return torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)


def _widened(tensor, dims, place):
    """The tensor for the whole batch, where it has this rank's rows; the others' are like them."""
    part, dimension, rows = place
    from_end = dims - dimension
    if tensor.dim() < from_end or tensor.shape[-from_end] != part.size * rows:
        return tensor
    index = (torch.arange(part.count * rows, device=tensor.device) - part.first * rows) % (part.size * rows)
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
        """From this rank's stream."""
        note_loose()
        with plain():
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
        if not splits() or not _drawable(tensor):
            return self.plainly(keys, (tensor, *args), kwargs)
        if self.op._overloadname == "from" and tensor.dim() == 1 and args[:2] == (-(1 << 63), (1 << 63) - 1):
            return self._seeds(keys, tensor, args, kwargs)
        place = None if _is_registered(tensor) else place_of(tuple(tensor.shape), _here.source)
        if place is None:
            return self.plainly(keys, (tensor, *args), kwargs)
        if place is _LOOSE:
            return self.loosely(keys, (tensor, *args), kwargs, tensor.device)
        part, dimension, rows = place
        whole = _whole_like(tensor, dimension, part.count * rows)
        args = [_widened(a.expand(tensor.shape), tensor.dim(), place) if isinstance(a, torch.Tensor) else a for a in args]
        self.plainly(keys, (whole, *args), kwargs)
        tensor.copy_(whole.narrow(*_rows(*place)))
        return tensor

    def _seeds(self, keys, tensor, args, kwargs):
        """Of the random numbers in code that torch.compile made, which has a way of its own to draw them."""
        note_loose()
        self.plainly(keys, (tensor, *args), kwargs)
        offset = _STREAMS * _job.rank % (1 << 64)
        return tensor.add_(offset - (1 << 64) if offset >= 1 << 63 else offset)


class _Steady(_Operation):
    """Numbers for tensors of the samples; in a new tensor, or `out`."""

    def __call__(self, keys, *args, **kwargs):
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if not splits() or not all(_drawable(t) for t in tensors):
            return self.plainly(keys, args, kwargs)
        shape = tuple(torch.broadcast_shapes(*(t.shape for t in tensors)))
        if self.op._opname == "multinomial" and len(shape) < 2:
            return self.plainly(keys, args, kwargs)  # of one distribution: a choice
        place = place_of(shape, next((t for t in tensors if t.grad_fn is not None), tensors[0]))
        if place is _LOOSE:
            return self.loosely(keys, args, kwargs, tensors[0].device)
        if place is None:
            with plain():
                return self.plainly(keys, args, kwargs)
        out = kwargs.get("out")
        wide = {**kwargs} if out is None else {**kwargs, "out": out.new_empty(0)}
        with plain():
            made = self.plainly(keys, [_widened(a, len(shape), place) if isinstance(a, torch.Tensor) else a for a in args], wide)
        made = made.narrow(*_rows(*place))
        return made.clone() if out is None else out.resize_(made.shape).copy_(made)


class _Unsteady(_Operation):
    """How many numbers an element takes depends on its value, so that only a rank's own stream is left."""

    def __call__(self, keys, tensor, *args, **kwargs):
        draws = "training" not in self.names or self.get("training", (tensor, *args), kwargs)
        if not draws or not splits() or not _drawable(tensor) or _none_of_samples(self, tensor):
            return self.plainly(keys, (tensor, *args), kwargs)
        return self.loosely(keys, (tensor, *args), kwargs, tensor.device)


def _none_of_samples(operation, tensor):
    if operation.op._opname == "_sample_dirichlet" and tensor.dim() < 2:
        return True
    return place_of(tuple(tensor.shape), tensor) is None


class _Permutation(_Operation):
    """Of the part's samples: those of the whole batch's that stay within the part."""

    def __call__(self, keys, count, *args, **kwargs):
        out = kwargs["out"]
        part = _parts[-1] if splits() else None
        if part is None or count != part.size or kwargs.get("generator") is not None or not _drawable(out):
            return self.plainly(keys, (count, *args), kwargs)
        note_loose()
        whole = torch.empty(part.count, dtype=out.dtype, device=out.device)
        self.plainly(keys, (part.count, *args), {**kwargs, "out": whole})
        return out.resize_(count).copy_(whole[(whole >= part.first) & (whole < part.last)] - part.first)


class _For(_Operation):
    """An operation that fills a tensor for another one."""

    def __call__(self, keys, source, *args, **kwargs):
        outer, _here.source = _here.source, source if splits() and _drawable(source) else None
        try:
            return self.plainly(keys, (source, *args), kwargs)
        finally:
            _here.source = outer


class _Dropout(_For):
    """Made of operations that autograd records; by PyTorch's own function for that, which stands behind each backend."""

    def plainly(self, keys, args, kwargs):
        return self.op.redispatch(_CPU, *args, **kwargs)


def _kind_of(op):
    """How an operation draws, by its schema and its kernels; None: it leaves that to others."""

    def has(key):
        return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)

    arguments = op._schema.arguments
    if _is_dropout(op._schema):
        return _Dropout if has("CompositeImplicitAutograd") else _For
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


def _random_operations():
    """Those of PyTorch: what takes a generator in one of its forms; and dropouts, which take none."""
    schemas = [schema for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::")]
    names = {schema.name for schema in schemas if any(a.name == "generator" for a in schema.arguments)}
    for schema in schemas:
        if (schema.name in names or _is_dropout(schema)) and torch._C._dispatch_has_kernel(f"{schema.name}.{schema.overload_name}".rstrip(".")):
            yield getattr(getattr(torch.ops.aten, schema.name.removeprefix("aten::")), schema.overload_name or "default")


def install(job):
    global _job, _library
    _job = weakref.proxy(job)
    _library = torch.library.Library("aten", "IMPL")
    for op in _random_operations():
        kind = _kind_of(op)
        if kind is not None:
            key = "AutogradCPU" if kind is _Dropout else _BEFORE_KERNELS
            _library.impl(op.name().removeprefix("aten::"), kind(op), key, with_keyset=True)
