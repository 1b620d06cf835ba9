"""What the loss of a part of a batch counts for, read from the graph that made it.

A loss is a mean over its part, or a sum. Means over samples weigh as many samples as the part has. A mean over what a part
has of something else (targets that are not ignored, class weights, elements of a mask) weighs as much of that as the part
has: then the parts' weighted mean is the mean over the whole batch."""
import sys

import torch

from .. import core

# A term of a loss: what its part was divided by says how much of it there is.
MEAN_OF_TARGETS, SUM_DIVIDED, MEAN_OF_ELEMENTS, SUM, OTHER = range(1, 6)
COUNTED = (MEAN_OF_TARGETS, SUM_DIVIDED)

NODES = 500  # of the graph that are looked at, at most
TERMS = 8  # of one backward whose counts the ranks compare
TOLERANCE = 1e-6  # counts of weighted classes are sums in single precision

_SCALINGS = ("DivBackward", "MulBackward")
_PASSED = (
    "NegBackward", "AddBackward", "SubBackward", "RsubBackward", "ToCopyBackward", "ViewBackward", "ReshapeAliasBackward",
    "UnsafeViewBackward", "SqueezeBackward", "UnsqueezeBackward", "CloneBackward", "StackBackward", "CatBackward", "AliasBackward",
    "SelectBackward", "ExpandBackward",
)
# What penalties on parameters are made of, beside the operations above.
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
    """A divisor that the script holds in a tensor: it has counted what this part has, over some batches perhaps
    (`num_items_in_batch` of transformers), where a number of its own would be a plain one."""


def _numel(node):
    """Of what a sum, a mean or a loss was made over."""
    if _is(node, "NllLoss"):
        return int(_saved(node, "total_weight"))
    sizes = _saved(node, "self_sym_sizes")
    if sizes is not None:
        return int(torch.Size(sizes).numel())
    tensor = _saved(node, "self")
    return tensor.numel() if isinstance(tensor, torch.Tensor) else 0


def _number(value):
    """The number that something was divided or multiplied by; None when it is none, or none yet."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_complex():
            return None
        return float(value) if _was_plain(value) else Counted(value)
    return float(value) if isinstance(value, (int, float)) else None


def _was_plain(value):
    """A plain number of Python, which autograd has put into a tensor: beside it the other type counts."""
    small = torch.tensor(1, dtype=torch.float16 if value.is_floating_point() else torch.int8)
    return value.dim() == 0 and torch.result_type(small, value) is small.dtype


def _kept(divisor, made, factor=None):
    """`made` of these, which is counted if one of them is."""
    return Counted(made) if isinstance(divisor, Counted) or isinstance(factor, Counted) else made


def _of_parameters(node, seen):
    """A penalty: made of parameters, and nothing of the batch."""
    if len(seen) > 64 or not _is(node, _PASSED + _SCALINGS + _OF_PENALTIES):
        return False
    seen.add(node)
    other = _saved(node, "other")
    if isinstance(other, torch.Tensor) and other.numel() > 1 and len(_parents(node)) < 2:
        return False
    return all(parent in seen or _of_parameters(parent, seen) for parent in _parents(node))


def _smoothed(node, sources):
    """The other term of a cross entropy with smoothed labels: made of the same logarithms, over the same targets."""
    while node is not None and node not in sources:
        parents = _parents(node)
        if not _is(node, _PASSED + _SCALINGS + ("SumBackward", "MeanBackward", "MaskedFillBackward", "MaskedSelectBackward", "IndexBackward")):
            return False
        node = parents[0] if len(parents) == 1 else None
    return node is not None


def _source_of(node):
    """What the values that a loss node takes were made of, before they got another shape."""
    node = _parents(node)[0]
    while _is(node, _PASSED) and _parents(node):
        node = _parents(node)[0]
    return node


def _compares_samples(node):
    """A contrastive loss: products of the batch's samples with each other, and the class of each is its own place."""
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
    """The terms of a loss, [(kind, count)], of those that depend on the batch."""

    def __init__(self, losses):
        self.terms = []
        self.numel = {}  # position in terms: elements under a sum
        self.compares = False  # the samples of a batch are each other's classes
        self._sources = set()  # what the means of targets were made of
        self._later = []  # (kind, count, node): terms that may belong to one of those
        self._walk([(loss.grad_fn, None, None) for loss in losses if loss.grad_fn is not None])
        for kind, count, node in self._later:
            if not (self._sources and _smoothed(node, self._sources)) and not _of_parameters(node, set()):
                if kind in (SUM, SUM_DIVIDED):
                    self.numel[len(self.terms)] = _numel(node)
                self.terms.append((kind, count))
        if [kind for kind, _ in self.terms] == [SUM_DIVIDED] and self.terms[0][1] <= 1 and not any(loss.item() for loss in losses):
            self.terms = [(SUM_DIVIDED, 0.0)]  # nothing was counted, and the script avoids a division by zero

    def _walk(self, reached):
        """`reached`: [(node, what it is divided by on the way to the loss; None: by nothing, and the same two of the sum or
        mean over one sample that led there; None: there was none)]"""
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
                self.terms.append((MEAN_OF_TARGETS, float(_saved(node, "total_weight"))))
                self._sources.add(_source_of(node))
                continue
            elif _is(node, _PASSED) or _is(node, ("SumBackward", "MeanBackward")) and self._over_terms(node):
                if _is(node, ("SumBackward", "MeanBackward")) and _saved(node, "self_sym_sizes"):
                    single = (node, divisor)
                reached += [(parent, divisor, single) for parent in reversed(_parents(node))]
                continue
            if single and (_is(node, ("SumBackward1", "MeanBackward1")) or not _reduces(node)):
                node, divisor = single  # a part of one sample: what is below is that sample's own
            self._leaf(node, divisor)
        self.terms.append((OTHER, 0.0))

    @staticmethod
    def _scaling(node):
        """(number, what it multiplies or divides) of a scalar; (None, None) of anything else."""
        parents = _parents(node)
        if len(parents) == 1:
            factor = _number(_saved(node, "other"))
            return _number(_saved(node, "self")) if factor is None else factor, parents[0]
        # A weight that is learned is the same on every rank, and made of parameters alone.
        of_batch = [parent for parent in parents if not _of_parameters(parent, set())]
        return (1.0, of_batch[0]) if len(of_batch) == 1 else (None, None)

    @staticmethod
    def _over_terms(node):
        """A sum or a mean over a list of losses, or over one. (Where that one is a sample's, it is counted: `single`.)"""
        return _numel(node) == 1 or any(_is(parent, ("StackBackward", "CatBackward")) for parent in _parents(node))

    def _leaf(self, node, divisor):
        if _is(node, "SumBackward") or _saved(node, "reduction") == 2:
            kind, count = (SUM, 0.0) if divisor is None else (SUM_DIVIDED, _kept(divisor, abs(divisor)))
        elif _is(node, "MeanBackward") or _saved(node, "reduction") == 1:
            kind, count = MEAN_OF_ELEMENTS, float(_numel(node))
        else:
            kind, count = OTHER, 0.0
        self._later.append((kind, count, node))

    def looks_like_sum(self, samples, part, rows):
        """Some term was made by adding what there is for each of a part's samples, `part` of the batch's `samples`, and was
        divided by no number of theirs: `rows`, of all ranks, have the same one, and it is the script's, the batch's or a small one."""
        same = all(row == rows[0] for row in rows)
        for position, (kind, count) in enumerate(self.terms):
            numel = self.numel.get(position, 0)
            of_script = same and not isinstance(count, Counted) and count != numel and (count < part or count % samples == 0)
            if kind == SUM and numel > 1 or kind == SUM_DIVIDED and of_script:
                return True
        return False

    @property
    def unknown(self):
        """Nothing tells what some term was divided by."""
        return any(kind == OTHER for kind, _ in self.terms)

    def row(self):
        """The same number of values on every rank: how many terms, then kind and count of each."""
        terms = self.terms[:TERMS]
        flat = [float(value) for term in terms for value in term]
        return [float(len(self.terms)), *flat, *(2 * (TERMS - len(terms)) * [0.0])]


def _terms_of(row):
    return [(int(row[1 + 2 * i]), row[2 + 2 * i]) for i in range(min(int(row[0]), TERMS))]


def _proportions(counts):
    whole = sum(counts)
    return [count / whole for count in counts] if whole else None


def _alike(a, b):
    return all(abs(x - y) <= TOLERANCE for x, y in zip(a, b))


_ADVICE = ("Set CASTOR_LOSS=mean where every term is a mean over samples, =tokens where it is one over what is counted, or use one "
           "rank")


def shares(mode, weights, rows):
    """What each rank's loss counts for. `weights`: of the ranks' parts by samples; `rows`: Measure.row() of each."""
    if mode == "sum":
        return [1.0 if weight else 0.0 for weight in weights]
    if mode == "mean":
        return list(weights)
    every = [_terms_of(row) for row in rows]
    here = [rank for rank, weight in enumerate(weights) if weight]
    kinds = [kind for kind, _ in every[here[0]]]
    of_ranks = {(rows[rank][0], *(kind for kind, _ in every[rank])) for rank in here}
    if len(of_ranks) > 1 and not any(kind in COUNTED for rank in here for kind, _ in every[rank]):
        return list(weights)  # a loss for each sample, perhaps: as many terms as samples
    if len(of_ranks) > 1:
        raise core.GroupError("castor: the losses of the ranks' parts of a batch are made of different terms, and cannot be "
                              "weighed against each other. " + _ADVICE)
    columns = [[every[rank][i][1] if weights[rank] else 0.0 for rank in range(len(rows))] for i in range(len(kinds))]
    counted, plain = [], OTHER in kinds or SUM in kinds or rows[here[0]][0] > TERMS
    for kind, column in zip(kinds, columns):
        part = _proportions(column)
        if part is None or kind in (OTHER, SUM):
            continue
        constant = kind == SUM_DIVIDED and len({column[rank] for rank in here}) == 1
        if mode == "tokens" or not _alike(part, weights) and not constant:
            counted.append((kind, part, column))
        else:
            plain = True
    if mode == "tokens":
        if not counted:
            raise core.GroupError(
                "castor: CASTOR_LOSS=tokens finds nothing that was counted in the loss: no mean that cross_entropy or nll_loss "
                "made, no sum divided by a number, no mean over elements. Give the loss so, or set CASTOR_LOSS=mean or sum")
    elif not counted:
        return list(weights)
    elif any(kind not in COUNTED for kind, _, _ in counted):
        elements = next(column for kind, _, column in counted if kind not in COUNTED)
        raise core.GroupError(
            f"castor: the loss is a mean over {min(elements):.0f} to {max(elements):.0f} elements on the ranks, out of proportion to their "
            "samples. Set CASTOR_LOSS=tokens where a mask selects them, =mean to weigh by samples; where parts are padded to different "
            "lengths, leave the padding out of the loss")
    elif plain:
        raise core.GroupError("castor: the loss adds a mean over counted targets (some are ignored, or classes are weighed) to "
                              "other terms, and the ranks' counts are out of proportion. " + _ADVICE)
    if not all(_alike(part, counted[0][1]) for _, part, _ in counted):
        raise core.GroupError("castor: the loss adds means over different numbers of targets, in other proportions on each rank: "
                              "no weight of a rank is right for all. " + _ADVICE)
    return counted[0][1]


# ---- what gets printed


def _before_scaling(loss):
    """What stood before each division and multiplication that ended in the loss, the last one first."""
    node = loss.grad_fn
    while node is not None and type(node).__name__ in ("DivBackward0", "MulBackward0"):
        node = next((parent for parent, _ in node.next_functions if parent is not None), None)
        yield node


def scaled_from(loss):
    """The scalar that a wrapper (Accelerate, a Trainer) divided or multiplied before it called backward, where a calling
    function still holds it: that is what gets printed."""
    nodes = list(_before_scaling(loss))[:2]
    found, frame = [], sys._getframe(1)
    while nodes and frame is not None:
        for value in frame.f_locals.values():
            if isinstance(value, torch.Tensor) and value.grad_fn in nodes and value.numel() == 1:
                if not any(value is other for other in found):
                    found.append(value)
        frame = frame.f_back
    return sorted(found, key=lambda value: nodes.index(value.grad_fn))[:2]
