"""Trials: may a model's calls be computed by rows?

The first calls of a module are computed twice, once by rows and once whole. The whole call is the one that counts. What the first one has done to
the module and to the random numbers is undone before it; then the results and what both calls have changed are compared. Rows that meet
inside of the model make a difference, and then all calls of that kind are computed whole."""
import contextlib
import io
import weakref

import torch

from .. import core
from ..common import tensors
from . import one_f_one_b, rows

SINGLE, HALF, LOSS = 5e-5, 2e-2, 2e-5  # differences, relative to the largest element
DOUBLE = 1e-9
LATE = 20  # times that, after the first calls: rounding may have grown with the weights
VALUES = 4  # of one argument or attribute that make calls of other kinds; what has more is a counter


class Form:
    """Calls of one kind."""

    def __init__(self, watches):
        self.left = core.options.audit  # calls that are still to be tried
        self.calls = 0
        self.whole = False  # such calls must be computed whole
        self.tried = False  # a trial over stages has failed, by what a model sets in its first call on one of them perhaps
        self.nested = False  # its graph has passes of their own, such as reentrant checkpoints
        self.sums = set()  # paths of losses in the result that are sums over rows, or divided by what the whole batch has
        self.in_parts = True  # a rank's batch may be computed as several microbatches, in DDP scripts (members.py)
        self.why_in_one = ""  # why it is not, which is to be said if such calls are divided at all
        self.watches = watches
        self.reached = None  # from which results of the last call the script went back (one_f_one_b.Reached), if that is to be known
        self.gradients = []  # numbers: those of the loss in the last two backward passes
        self.early = None  # backward passes may be run within such calls; None: that is not known yet
        self.arguments = None  # {path: the dimension of rows, or None}; later lengths may be the batch's by chance
        self.results = {}  # {path: where its rows are}
        self.counts = {}  # {path: value} of whole numbers in the result

    @property
    def loss(self):
        """Of the results of a call that begins now: whose gradient alone the script will ask for, as it did after the last one, so that the call may run the
        backward passes of its microbatches; None: they are left to the script's."""
        if self.early is False or not core.options.audit or self.reached is None or not torch.is_grad_enabled():
            return None
        return self.reached.loss

    def watched(self, result):
        """The result of a call, of which it is to be known what the script goes back from."""
        if self.watches and torch.is_grad_enabled():
            self.reached = one_f_one_b.Reached()
            result = self.reached.seen(result)
        return result

    @property
    def due(self):
        """The call that begins is to be tried: one of the first, and after that ever fewer, for what a script begins to do late."""
        self.calls += 1
        return self.left > 0 or core.options.audit > 0 and self.calls >= 8 and not self.calls & self.calls - 1


class Trials:
    """The kinds of calls of each module: what the arguments are, but for their lengths, and which words, switches and numbers there are."""

    def __init__(self, watches=False):
        """watches: what scripts go back from."""
        self._watches = watches
        self._of = weakref.WeakKeyDictionary()  # module: ({kind: Form}, {path: its values})

    def of(self, module, modules, arguments):
        """`modules`: (name, module) of all that belong to it."""
        forms, values = self._of.setdefault(module, ({}, {}))
        kind, plain = [torch.is_grad_enabled(), torch.is_inference_mode_enabled()], []
        for leaf, path in rows.leaves(arguments):
            if isinstance(leaf, torch.Tensor):
                kind.append((path, leaf.dim(), leaf.dtype, leaf.requires_grad, *(length == 1 for length in leaf.shape[:2])))
            else:
                kind.append((path, type(leaf).__name__))
                plain.append((path, leaf))
        for path, value in (*plain, *_settings(modules)):
            if isinstance(value, (bool, int, str)):
                known = values.setdefault(path, set())
                if len(known) <= VALUES:
                    known.add(value)
                if len(known) <= VALUES:
                    kind.append((path, value))
        return forms.setdefault(repr(kind), Form(self._watches))


def _settings(modules):
    """(path, value) of the attributes of the script's modules: stages and modes, and PyTorch's own of each module."""
    for name, m in modules:
        if not type(m).__module__.startswith("torch."):
            for key, value in vars(m).items():
                if type(value) in (bool, int, str):
                    yield f"{name}.{key}", value
        elif not m.training:
            yield f"{name}.training", False


@contextlib.contextmanager
def unheard():
    """What runs here prints nothing."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def added(made, whole, totals, sums):
    """The results of a call by rows, `made`, with each loss that is not the whole call's, but whose sum over the ranks is, replaced by that;
    its path joins `sums`."""
    of_whole = {path: leaf for leaf, path in rows.leaves(whole)}

    def total_of(leaf, path):
        loss = of_whole.get(path)
        if path not in totals or not isinstance(loss, torch.Tensor) or loss.shape != leaf.shape or close(leaf, loss.detach()):
            return leaf
        total = leaf.new_full(leaf.shape, totals[path])
        if not close(total, loss.detach()):
            return leaf
        sums.add(path)
        return total

    return rows.mapped(made, total_of)


def difference(one, other, early=True, what="has another result"):
    """Why two results, or two lists of changes, are not equal but for rounding; empty: they are."""
    slack = 1 if early else LATE
    ones, others = rows.leaves(one), rows.leaves(other)
    paths, other_paths = [path for _, path in ones], [path for _, path in others]
    if paths != other_paths:
        return f"by rows it {what} ({next((path for path in paths + other_paths if (path in paths) != (path in other_paths)), 'in another order')})"
    for (a, path), (b, _) in zip(ones, others):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            if a.shape != b.shape or a.dtype != b.dtype or not close(a.detach(), b.detach(), slack):
                return f"by rows it {what}{path and f' ({path})'}"
        elif isinstance(a, (bool, int, float, complex, str, torch.Size)) and a != b and not (isinstance(a, float) and abs(a - b) <= slack * LOSS * abs(b)):
            return f"by rows it {what}{path and f' ({path})'}"
    return ""


def close(a, b, slack=1):
    if not a.numel() or not tensors.holds_numbers(a):
        return True
    if not (a.is_floating_point() or a.is_complex()):
        return not tensors.differ(a, b)
    allowed = DOUBLE if a.dtype in (torch.float64, torch.complex128) else HALF if a.dtype in (torch.float16, torch.bfloat16) else SINGLE if a.dim() else LOSS
    wide = torch.complex128 if a.is_complex() else torch.float64
    a, b = a.to(wide), b.to(wide)
    finite = torch.isfinite(b.abs())
    if tensors.differ(torch.isfinite(a.abs()), finite):
        return False
    a, b = a[finite], b[finite]
    return not a.numel() or float((a - b).abs().max()) <= slack * allowed * float(b.abs().max())
