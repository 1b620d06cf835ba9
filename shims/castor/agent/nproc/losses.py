"""The weight of the loss of a part of a batch, read from the graph that made the loss.

A loss is a mean over its part, or a sum. The weight of a mean over samples is the part's number of samples. The weight of a
mean over something else (targets that are not ignored, class weights, elements of a mask) is the part's amount of that. Then
the parts' weighted mean is the mean over the whole batch."""
import sys
from ctypes import c_double

import torch

from .. import core

NODES = 500  # of the graph that are looked at, at most

_SCALINGS = ("DivBackward", "MulBackward")
_PASSED = (
    "NegBackward", "AddBackward", "SubBackward", "RsubBackward", "ToCopyBackward", "ViewBackward", "ReshapeAliasBackward",
    "UnsafeViewBackward", "SqueezeBackward", "UnsqueezeBackward", "CloneBackward", "StackBackward", "CatBackward", "AliasBackward",
    "SelectBackward", "ExpandBackward",
)
# Operations of penalties on parameters, beside those above.
_OF_PENALTIES = (
    "AccumulateGrad", "PowBackward", "AbsBackward", "SumBackward", "MeanBackward", "SqrtBackward", "NormBackward",
    "LinalgVectorNormBackward", "TBackward",
)


def _is(node, names):
    return type(node).__name__.startswith(names)


def _parents(node):
    return [parent for parent, _ in node.next_functions if parent is not None]


def _saved(node, name, default=None):
    return getattr(node, "_saved_" + name, default)


class Counted(float):
    """A divisor that the script holds in a tensor: a count of items of this part, perhaps of several batches
    (`num_items_in_batch` of transformers). A constant of the script would be a plain number."""


def _numel(node):
    """The number of elements under a sum, a mean or a loss."""
    if _is(node, "NllLoss"):
        return int(_saved(node, "total_weight"))
    sizes = _saved(node, "self_sym_sizes")
    if sizes is not None:
        return int(torch.Size(sizes).numel())
    tensor = _saved(node, "self")
    return tensor.numel() if isinstance(tensor, torch.Tensor) else 0


def _number(value):
    """The number that something was divided or multiplied by; None if `value` is no single real number."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_complex():
            return None
        return float(value) if _was_plain(value) else Counted(value)
    return float(value) if isinstance(value, (int, float)) else None


def _was_plain(value):
    """Whether it is a plain number of Python that autograd has put into a tensor: next to a tensor, the tensor's type wins."""
    small = torch.tensor(1, dtype=torch.float16 if value.is_floating_point() else torch.int8)
    return value.dim() == 0 and torch.result_type(small, value) is small.dtype


def _kept(divisor, made, factor=None):
    """`made`, computed from the others; Counted if one of them is."""
    return Counted(made) if isinstance(divisor, Counted) or isinstance(factor, Counted) else made


def _of_parameters(node, seen):
    """Whether it is a penalty: made of parameters, and of nothing of the batch."""
    if len(seen) > 64 or not _is(node, _PASSED + _SCALINGS + _OF_PENALTIES):
        return False
    seen.add(node)
    other = _saved(node, "other")
    if isinstance(other, torch.Tensor) and other.numel() > 1 and len(_parents(node)) < 2:
        return False
    return all(parent in seen or _of_parameters(parent, seen) for parent in _parents(node))


def _smoothed(node, sources):
    """Whether it is the other term of a cross entropy with smoothed labels: of the same logarithms, over the same targets."""
    while node is not None and node not in sources:
        parents = _parents(node)
        if not _is(node, _PASSED + _SCALINGS + ("SumBackward", "MeanBackward", "MaskedFillBackward", "MaskedSelectBackward", "IndexBackward")):
            return False
        node = parents[0] if len(parents) == 1 else None
    return node is not None


def _source_of(node):
    """The node that made the input of a loss node, before changes of shape."""
    node = _parents(node)[0]
    while _is(node, _PASSED) and _parents(node):
        node = _parents(node)[0]
    return node


def _compares_samples(node):
    """Whether a loss is contrastive: products of the batch's samples with each other, each one's class being its own place."""
    logits, target = _saved(node, "self"), _saved(node, "target")
    if logits.dim() != 2 or logits.shape[0] != logits.shape[1] or len(target) < 2:
        return False
    if not torch.equal(target, torch.arange(len(target), dtype=target.dtype, device=target.device)):
        return False
    while _is(node, _PASSED + _SCALINGS + ("NllLoss", "LogSoftmax", "TBackward", "TransposeBackward")):
        parents = [parent for parent in _parents(node) if not _of_parameters(parent, set())]
        if len(parents) != 1:
            return False
        node = parents[0]
    return _is(node, "MmBackward") and not any(_of_parameters(parent, set()) for parent in _parents(node))


def _reduces(node):
    return _is(node, ("SumBackward", "MeanBackward")) or _saved(node, "reduction") in (1, 2)


class Measure:
    """The terms of a loss that depend on the batch, [(kind, count)]."""

    def __init__(self, losses):
        self.terms = []
        self.numel = {}  # position in terms: elements under a sum
        self.compares = False  # the samples of a batch are each other's classes
        self._sources = set()  # the nodes that made the inputs of means of targets
        self._later = []  # (kind, count, node): terms that may belong to one of those
        self._walk([(loss.grad_fn, None, None) for loss in losses if loss.grad_fn is not None])
        for kind, count, node in self._later:
            if not (self._sources and _smoothed(node, self._sources)) and not _of_parameters(node, set()):
                if kind in (core.TERM_SUM, core.TERM_SUM_DIVIDED):
                    self.numel[len(self.terms)] = _numel(node)
                self.terms.append((kind, count))
        if [kind for kind, _ in self.terms] == [core.TERM_SUM_DIVIDED] and self.terms[0][1] <= 1 and not any(loss.item() for loss in losses):
            self.terms = [(core.TERM_SUM_DIVIDED, 0.0)]  # nothing was counted, and the script avoids a division by zero
        del self._sources, self._later  # the graph is not this object's

    def _walk(self, reached):
        """`reached`: [(node, its divisor on the way to the loss, or None; the (node, divisor) of the sum or mean over one sample
        on that way, or None)]"""
        reached.reverse()
        for _ in range(NODES):
            if not reached:
                return
            node, divisor, single = reached.pop()
            if _is(node, _SCALINGS):
                factor, parent = self._scaling(node)
                if factor is not None:
                    if _is(node, "DivBackward"):  # by zero, where a part has nothing to count
                        reached.append((parent, factor if divisor is None else _kept(divisor, divisor * factor, factor), single))
                    elif factor:
                        reached.append((parent, None if divisor is None else _kept(divisor, divisor / factor), single))
                    continue
            elif _is(node, "NllLoss") and _saved(node, "reduction") == 1:
                self.compares = self.compares or _compares_samples(node)
                self.terms.append((core.TERM_MEAN_OF_TARGETS, float(_saved(node, "total_weight"))))
                self._sources.add(_source_of(node))
                continue
            elif _is(node, _PASSED) or _is(node, ("SumBackward", "MeanBackward")) and self._over_terms(node):
                if _is(node, ("SumBackward", "MeanBackward")) and _saved(node, "self_sym_sizes"):
                    single = (node, divisor)
                reached += [(parent, divisor, single) for parent in reversed(_parents(node))]
                continue
            if single and (_is(node, ("SumBackward1", "MeanBackward1")) or not _reduces(node)):
                node, divisor = single  # a part of one sample: the nodes below are that sample's own
            self._leaf(node, divisor)
        self.terms.append((core.TERM_OTHER, 0.0))

    @staticmethod
    def _scaling(node):
        """(number, the node that it multiplies or divides); the number is None if the node does not scale by one."""
        parents = _parents(node)
        if len(parents) == 1:
            factor = _number(_saved(node, "other"))
            return _number(_saved(node, "self")) if factor is None else factor, parents[0]
        # A weight that is learned is the same on every rank, and made of parameters alone.
        of_batch = [parent for parent in parents if not _of_parameters(parent, set())]
        return (1.0, of_batch[0]) if len(of_batch) == 1 else (None, None)

    @staticmethod
    def _over_terms(node):
        """Whether it is a sum or a mean over a list of losses, or over one. (If that is a sample's, `single` has it.)"""
        return _numel(node) == 1 or any(_is(parent, ("StackBackward", "CatBackward")) for parent in _parents(node))

    def _leaf(self, node, divisor):
        if _is(node, "SumBackward") or _saved(node, "reduction") == 2:
            kind, count = (core.TERM_SUM, 0.0) if divisor is None else (core.TERM_SUM_DIVIDED, _kept(divisor, abs(divisor)))
        elif _is(node, "MeanBackward") or _saved(node, "reduction") == 1:
            kind, count = core.TERM_MEAN_OF_ELEMENTS, float(_numel(node))
        else:
            kind, count = core.TERM_OTHER, 0.0
        self._later.append((kind, count, node))

    def looks_like_sum(self, samples, local, rows):
        """Whether some term is a sum over the samples of a local batch (`local` of the batch's `samples`) that was not divided by their
        number. A divisor is another number if `rows`, of all ranks, are equal, and it is smaller than that or a multiple of
        the batch."""
        same = all(row == rows[0] for row in rows)
        for position, (kind, count) in enumerate(self.terms):
            numel = self.numel.get(position, 0)
            of_script = same and not isinstance(count, Counted) and count != numel and (count < local or count % samples == 0)
            if kind == core.TERM_SUM and numel > 1 or kind == core.TERM_SUM_DIVIDED and of_script:
                return True
        return False

    @property
    def unknown(self):
        """Whether the divisor of some term is unknown."""
        return any(kind == core.TERM_OTHER for kind, _ in self.terms)

    @property
    def counts_nothing(self):
        """Whether it is a mean over nothing."""
        return any(kind in (core.TERM_MEAN_OF_TARGETS, core.TERM_SUM_DIVIDED) and not count for kind, count in self.terms)

    def row(self):
        """The same number of values on every rank: how many terms, then kind and count of each."""
        terms = self.terms[:core.LOSS_TERMS]
        flat = [float(value) for term in terms for value in term]
        return [float(len(self.terms)), *flat, *(2 * (core.LOSS_TERMS - len(terms)) * [0.0])]


def added(measures):
    """(whether one of the losses compares samples, the row of their sum), of losses of one form, each of some rows."""
    every = [measure.row() for measure in measures]
    counts = slice(2, None, 2)
    row = list(every[0]) if every else []
    row[counts] = [sum(of) for of in zip(*(one[counts] for one in every))]
    return any(measure.compares for measure in measures), row


def shares(weights, rows):
    """The weight of each rank's loss. `weights`: of the ranks' parts by samples; `rows`: Measure.row() of each."""
    every = (c_double * len(weights))()
    flat = [value for row in rows for value in row]
    core.loss_shares((c_double * len(weights))(*weights), (c_double * len(flat))(*flat), len(weights), every)
    return list(every)


# ---- what gets printed


def _before_scaling(loss):
    """The node before each division and multiplication at the end of the loss, the last one first."""
    node = loss.grad_fn
    while node is not None and type(node).__name__ in ("DivBackward0", "MulBackward0"):
        node = next((parent for parent, _ in node.next_functions if parent is not None), None)
        yield node


def scaled_from(loss):
    """The scalars that a wrapper (Accelerate, a Trainer) divided or multiplied before it called backward, if a calling function
    still holds them: these get printed. Without this look at callers' frames accelerator.py of the semantics suite fails."""
    nodes = list(_before_scaling(loss))[:2]
    found, frame = [], sys._getframe(1)
    while nodes and frame is not None:
        for value in frame.f_locals.values():
            if isinstance(value, torch.Tensor) and value.grad_fn in nodes and value.numel() == 1:
                if not any(value is other for other in found):
                    found.append(value)
        frame = frame.f_back
    return sorted(found, key=lambda value: nodes.index(value.grad_fn))[:2]
