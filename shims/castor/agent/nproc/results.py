"""What a divided call returns: the whole results, made of those of each rank, and refused where they are neither rows nor losses."""
import functools
import numbers
import zlib

import torch

from .. import core
from . import losses, rows, script_process

_LARGE = 1 << 20  # bytes of a tensor above which a look at some of them must do
RAISED = -1.0  # instead of a digest
LOSS = "loss"


class Results:
    def __init__(self, job):
        self.job = job

    def join(self, division, held, result, form, raised=None):
        """The whole results. `raised`: an exception instead of them."""
        found, joined = {}, {}

        def place(leaf, path):
            if isinstance(leaf, torch.Tensor) and id(leaf) not in found:
                found[id(leaf)] = (leaf, path, form.results.setdefault(path, place_of(leaf, division)))
            return leaf

        if raised is None:
            rows.mapped(result, place)
        self._compare(held, result, found.values(), division, form, raised)

        def whole_of(leaf, path):
            if not isinstance(leaf, torch.Tensor):
                return leaf
            if id(leaf) not in joined:
                how = found[id(leaf)][2]
                if how == LOSS:
                    path = found[id(leaf)][1]
                    joined[id(leaf)] = rows.Sum.apply(leaf, 1.0 if path in form.sums else self._share_of(leaf, division, path), division, path)
                else:
                    joined[id(leaf)] = leaf if how is None else division.whole(leaf, *how)
            return joined[id(leaf)]

        return rows.mapped(result, whole_of)

    def measures_of(self, of):
        return [losses.Measure([loss]) for loss in of] if self.job.loss in ("auto", "tokens") else []

    def _share_of(self, loss, division, path):
        """This rank's share of a loss that the model returns."""
        compares, row = division.measures.get(path) or losses.added(self.measures_of([loss]))
        compares = self.job.loss == "auto" and compares
        every = self.job.layout.of_replicas(self.job.group.gather([float(compares), division.size / division.count, *row], "what a loss counts for"))
        if any(compares for compares, *_ in every):
            raise rows.Apart("returns a loss that compares the samples of a batch with each other")
        return losses.shares([weight for _, weight, *_ in every], [row for _, _, *row in every])[division.rank]

    def _compare(self, held, result, found, division, form, raised):
        """Raises Apart for what differs between the ranks and is neither rows nor a loss, on all ranks."""
        gather = functools.partial(self.job.group.gather, what="what a model returns")
        if raised is not None:
            every = gather([RAISED, 0.0])
            if all(row[0] == RAISED for row in every):
                raise raised
            raise rows.Apart(f"raises {type(raised).__name__} on some of the ranks only ({raised})") from raised
        items = [(f"changes {path} by the rows that it gets", digest(what)) for path, what in held.changed().items()]
        forms, apart = [], "asks for gradients inside of it, of which each rank has some rows" if division.hooked else ""
        for leaf, path, how in found:
            shape = list(leaf.shape)
            if how is not None and how != LOSS:
                dimension, each = how
                if leaf.dim() <= dimension or leaf.shape[dimension] != division.size * each:
                    apart = apart or f"returns {shape[0] if shape else 1} rows{path and f' (result{path})'}, where it returned as many as it got"
                else:
                    shape[dimension] = -1
            forms.append((path, shape, str(leaf.dtype), how))
            if how is None and not is_of_model(leaf):
                items.append((f"returns numbers{path and f' (result{path})'} of shape {tuple(leaf.shape)} that are made of the rows that it gets", digest(leaf)))
        for leaf, path in rows.leaves(result):
            if isinstance(leaf, (bool, numbers.Number, str)):
                items.append((f"returns a number{path and f' (result{path})'} that is made of the rows that it gets", digest(leaf)))
            elif not isinstance(leaf, torch.Tensor) and rows.may_hold(leaf):
                apart = apart or f"returns a {type(leaf).__name__}, whose rows cannot be joined"
            if _is_count(leaf) and form.counts.setdefault(path, leaf.item() if isinstance(leaf, torch.Tensor) else leaf) != leaf:
                apart = apart or f"returns a whole number{path and f' (result{path})'} that changes, and may count rows"
        every = gather([digest((forms, [text for text, _ in items], apart)), digest([digest for _, digest in items])])
        if all(row == every[0] for row in every) and not apart:
            return
        what = apart or "returns results, or changes what it holds, in another way on each rank"
        if any(row[0] == RAISED for row in every):
            what = "raises an exception on some of the ranks only"
        elif all(row[0] == every[0][0] for row in every) and not apart:
            every = gather([digest for _, digest in items])
            what = next(text for number, (text, _) in enumerate(items) if any(row[number] != every[0][number] for row in every))
        raise rows.Apart(what)


def place_of(leaf, division):
    """(dimension, rows for each row of the batch) of a result; LOSS: it is one; None: it has no rows."""
    if is_of_model(leaf) or not rows.is_plain(leaf):
        return None
    if not leaf.dim():
        return LOSS if leaf.requires_grad and leaf.is_floating_point() else None
    if leaf.shape[0] == division.size:
        return 0, 1
    if leaf.dim() > 1 and leaf.shape[1] == division.size:
        return 1, 1
    each, rest = divmod(leaf.shape[0], division.size)
    return (0, each) if each and not rest and division.size > 1 else None


def _is_count(leaf):
    """A whole number, which may be equal on all ranks by chance."""
    if isinstance(leaf, torch.Tensor):
        return not leaf.dim() and not leaf.is_floating_point() and not leaf.is_complex() and not is_of_model(leaf)
    return isinstance(leaf, int)


def is_of_model(leaf):
    return isinstance(leaf, torch.nn.Parameter) or isinstance(leaf, torch.Tensor) and script_process.is_registered(leaf)


def digest(tensor):
    """Of a tensor, or of what its text tells: numbers, words, lists of them."""
    if not isinstance(tensor, torch.Tensor):
        return float(zlib.crc32(repr(tensor).encode()))
    flat = rows.resolved(tensor).reshape(-1)
    if flat.numel() * flat.element_size() > _LARGE:
        wide = torch.float64 if flat.is_floating_point() else None
        return digest((flat.sum(dtype=wide).item(), flat[::7].sum(dtype=wide).item()))
    return float(zlib.crc32(flat.view(torch.uint8).cpu().numpy().tobytes())) if flat.numel() else 0.0
