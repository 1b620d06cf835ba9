"""Which arguments of a model's call have the rows of a batch."""
import torch

from . import results, rows, streams

_BATCH_SECOND = (torch.nn.RNNBase, torch.nn.MultiheadAttention, torch.nn.Transformer, torch.nn.TransformerEncoder, torch.nn.TransformerDecoder)


def rows_in(module, arguments, form, known):
    """How many rows the arguments of a call have; the first call of a form tells which of them have rows (form.arguments). known: how many there must be; 0:
    nothing tells. Raises Apart where they cannot be divided by rows."""
    found = [(leaf, path) for leaf, path in rows.leaves(arguments, rows.is_column) if not results.is_of_model(leaf)]
    for leaf, path in found:
        if rows.is_opaque(leaf):
            raise rows.Apart(f"an argument is a {type(leaf).__name__}, which may hold tensors")
        if isinstance(leaf, torch.Tensor) and not rows.is_plain(leaf):
            raise rows.Apart("an argument is no plain tensor")
    tensors = [(leaf, path) for leaf, path in found if isinstance(leaf, torch.Tensor) and leaf.dim()]
    if form.arguments is None:
        count, dimensions = _batch_of([leaf for leaf, _ in tensors], _dimensions(module, known))
        form.arguments = {path: d for (_, path), d in zip(tensors, dimensions)}
        form.arguments |= {path: 0 if streams.is_column(leaf, count) else None for leaf, path in found if not isinstance(leaf, torch.Tensor)}
    lengths = {leaf.shape[form.arguments[path]] for leaf, path in tensors if form.arguments[path] is not None}
    lengths |= {len(leaf) for leaf, path in found if not isinstance(leaf, torch.Tensor) and form.arguments.get(path) is not None}
    if len(lengths) != 1:
        raise rows.Apart("its arguments have different numbers of rows")
    return lengths.pop()


def _dimensions(module, known):
    """The dimension that may be the batch's, and how many rows it must have; 0: any number."""
    if isinstance(module, _BATCH_SECOND) and not module.batch_first:
        return 1, 0
    if all(getattr(m, "batch_first", True) for m in module.modules()):
        return 0, 0
    if not known:
        raise rows.Apart("a layer has its batch in the second dimension (batch_first=False)")
    return 0, known


def _batch_of(tensors, place):
    """(rows of the batch, the dimension of them in each tensor; None: it has none). `place`: the dimension that they are looked for in, and how
    many they must be, or 0."""
    first, count = place
    columns = [t for t in tensors if t.dim() > first and t.shape[first] != 1]
    if not columns:
        raise rows.Apart("no argument is a tensor with rows", 3)
    count = count or columns[0].shape[first]
    dimensions = [next((d for d in (first, 1 - first) if t.dim() > d and t.shape[d] == count), None if t.shape[0] == 1 else -1) for t in tensors]
    if -1 in dimensions or all(d is None for d in dimensions):
        raise rows.Apart("its arguments have different numbers of rows")
    return count, dimensions
