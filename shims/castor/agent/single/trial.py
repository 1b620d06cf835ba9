"""Trials: may a model's calls be computed by rows?

The first calls of a module are computed twice, once by rows and once whole. The whole call is the one that counts. What the first one has done to
the module and to the random numbers is undone before it; then the results and what both calls have changed are compared. Rows that meet
inside of the model make a difference, and then all calls of that kind are computed whole."""
import collections
import contextlib
import dis
import functools
import io
import threading
import types
import weakref

import torch

from .. import core
from . import rows, streams

KEPT_BYTES = 1 << 30  # of buffers that are kept to be put back
PARAMETER_BYTES = 1 << 20  # of a parameter that is
SINGLE, HALF, LOSS = 1e-4, 2e-2, 2e-4  # differences, relative to the largest element
OBJECTS = 2000  # whose state is kept, at most
_NO_OBJECTS = (torch.Tensor, torch.nn.Module, type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, threading.Thread)
_CONTAINERS = (list, dict, set, collections.OrderedDict, collections.deque)


class Form:
    """Calls of one kind."""

    def __init__(self):
        self.left = core.options.audit  # calls that are still to be tried
        self.whole = False  # such calls must be computed whole
        self.sums = set()  # paths of losses in the result that are sums over rows, or divided by what the whole batch has


class Trials:
    """The kinds of calls of each module. A kind is what the arguments are, but for their lengths."""

    def __init__(self):
        self._of = weakref.WeakKeyDictionary()  # module: {kind: Form}

    def of(self, module, arguments):
        kind = repr([(path, leaf.dim(), leaf.dtype, leaf.requires_grad) if isinstance(leaf, torch.Tensor) else (path, type(leaf).__name__)
                     for leaf, path in rows.leaves(arguments)]) + str(module.training)
        return self._of.setdefault(module, {}).setdefault(kind, Form())


class Versions:
    """Which tensors a module has, and how often each has changed."""

    def __init__(self, module):
        self.module = module
        self.known = {id(t): t._version for _, t in tensors_of(module)}

    def changed(self):
        """{path: tensor} of those that have changed since, or are others now."""
        return {path: t for path, t in tensors_of(self.module) if self.known.get(id(t)) != t._version}


class Snapshot:
    """The state of a module, and of the random numbers, that a call may change."""

    def __init__(self, module):
        self.module, self.states = module, streams.states()
        self.attributes = [(m, type(m), dict(vars(m)), [(value, value.copy()) for value in vars(m).values() if type(value) in _CONTAINERS])
                           for m in _objects_of(module)]
        self.tensors, kept = [], 0
        for path, t in tensors_of(module):
            size = t.numel() * t.element_size()
            small = size <= PARAMETER_BYTES if isinstance(t, torch.nn.Parameter) else kept + size <= KEPT_BYTES
            kept += size * small
            self.tensors.append((path, t, t._version, t.detach().clone() if small else None))

    def changed(self):
        """{path: a copy} of the tensors that have changed since, or are others now."""
        known = {id(t): (version, before) for _, t, version, before in self.tensors}
        return {path: t.detach().clone() for path, t in tensors_of(self.module) if id(t) not in known or _has_changed(t, *known[id(t)])}

    def put_back(self):
        """Undoes all changes. Returns the paths of tensors that were too large to be kept."""
        streams.restore(self.states)
        for m, kind, attributes, containers in self.attributes:
            for value, before in containers:
                value.clear()
                (value.update if hasattr(value, "update") else value.extend)(before)
            vars(m).clear()
            vars(m).update(attributes)
            if type(m) is not kind:  # a lazy module
                m.__class__ = kind
        lost = []
        for number, (path, t, version, before) in enumerate(self.tensors):
            if not _has_changed(t, version, before):
                continue
            if before is None:
                lost.append(path)
            else:
                t.data.copy_(before)  # not a change for autograd
            self.tensors[number] = path, t, t._version, before
        return lost


def _has_changed(t, version, before):
    """Not every kernel counts what it writes."""
    return t._version != version if before is None else not torch.equal(t.detach(), before)


def _objects_of(module):
    """The modules, and the plain objects that they refer to: configurations, counters, schedules."""
    found = {id(m): m for m in module.modules() if not isinstance(m, torch.jit.ScriptModule)}
    reached = list(found.values())
    while reached and len(found) < OBJECTS:
        for value in vars(reached.pop()).values():
            items = [value, *(value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ())]
            for item in items:
                if id(item) not in found and hasattr(item, "__dict__") and not isinstance(item, _NO_OBJECTS):
                    found[id(item)] = item
                    reached.append(item)
    return list(found.values())


@functools.cache
def writes_outside(kind):
    """Whether a class's forward assigns global variables, or those of a function around it."""
    code = getattr(getattr(kind, "forward", None), "__code__", None)
    if code is None:
        return False
    return any(i.opname == "STORE_GLOBAL" or i.opname == "STORE_DEREF" and i.argval in code.co_freevars for i in dis.get_instructions(code))


def tensors_of(module):
    """Parameters, buffers and plain attributes."""
    for name, m in module.named_modules():
        for key, value in (*m._parameters.items(), *m._buffers.items(), *vars(m).items()):
            if isinstance(value, torch.Tensor):
                yield f"{name}.{key}".lstrip("."), value


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
        if path not in totals or not isinstance(loss, torch.Tensor) or loss.shape != leaf.shape or _close(leaf, loss.detach()):
            return leaf
        total = leaf.new_full(leaf.shape, totals[path])
        if not _close(total, loss.detach()):
            return leaf
        sums.add(path)
        return total

    return rows.mapped(made, total_of)


def difference(one, other):
    """Why two results, or two lists of changes, are not equal but for rounding; empty: they are."""
    ones, others = rows.leaves(one), rows.leaves(other)
    if [path for _, path in ones] != [path for _, path in others]:
        return "has results of another form"
    for (a, path), (b, _) in zip(ones, others):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            if a.shape != b.shape or a.dtype != b.dtype or not _close(a.detach(), b.detach()):
                return f"has another result{path and f' ({path})'}"
        elif isinstance(a, (bool, int, float, str)) and a != b and not (isinstance(a, float) and abs(a - b) <= LOSS * abs(b)):
            return f"has another result{path and f' ({path})'}"
    return ""


def _close(a, b):
    if not a.numel():
        return True
    if not (a.is_floating_point() or a.is_complex()):
        return bool((a == b).all())
    allowed = HALF if a.dtype in (torch.float16, torch.bfloat16) else SINGLE if a.dim() else LOSS
    wide = torch.complex128 if a.is_complex() else torch.float64
    a, b = a.to(wide), b.to(wide)
    finite = torch.isfinite(b.abs())
    if not bool((torch.isfinite(a.abs()) == finite).all()):
        return False
    a, b = a[finite], b[finite]
    return not a.numel() or float((a - b).abs().max()) <= allowed * float(b.abs().max())
