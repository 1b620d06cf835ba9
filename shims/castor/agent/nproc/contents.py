"""What a call of a model may change: what its modules hold, the plain objects and containers that they refer to, and the variables of the
script that their forward functions can reach."""
import argparse
import collections.abc
import contextlib
import functools
import inspect
import os
import sys
import threading
import types
import weakref
import zlib

import torch

from ..common import store
from ..process import ends
from . import rows, streams

KEPT_BYTES = 1 << 30  # of buffers that are kept to be put back
SMALL_BYTES, SMALL_KEPT_BYTES = 1 << 20, 256 << 20  # of any other tensor that is; of all of them
OBJECTS = 2000  # that are looked into, at most
ITEMS, LAST = 1000, 16  # of a container that are looked at; of a longer one, the last ones
_OBJECTS = (torch.nn.Module, types.SimpleNamespace, argparse.Namespace)  # of PyTorch's and Python's that are looked into
_CONTAINERS = (list, dict, set, collections.deque)
_PLAIN = (bool, int, float, complex, str)
_SIMPLE = frozenset((*_PLAIN, type(None)))
_LEAVES = (torch.Tensor, *_PLAIN)
_WALKED = (*_CONTAINERS, tuple)
# Attributes of a module that hold hooks and modules, which are looked at by themselves.
_REGISTERED = ("_parameters", "_buffers")
_OF_MODULE = {*vars(torch.nn.Module())} - {*_REGISTERED, "training"}


class _Cells(dict):
    """The variables of the functions around a function, which it may assign."""

    def __init__(self, function):
        self.cells = dict(zip(function.__code__.co_freevars, function.__closure__))
        self.look()

    def look(self):
        for name, cell in self.cells.items():
            with contextlib.suppress(ValueError):  # it has no value yet
                dict.__setitem__(self, name, cell.cell_contents)

    def __setitem__(self, name, value):
        super().__setitem__(name, value)
        self.cells[name].cell_contents = value


class _OfClass(dict):
    """The variables of a class, which vars() shows and does not let change."""

    def __init__(self, kind):
        self.kind = kind
        self.look()

    def look(self):
        now = {name: value for name, value in vars(self.kind).items() if isinstance(value, (*_LEAVES, *_WALKED)) and not name.startswith("__")}
        for name in [name for name in self if name not in now]:
            super().__delitem__(name)
        self.update(now)

    def __setitem__(self, name, value):
        super().__setitem__(name, value)
        setattr(self.kind, name, value)

    def __delitem__(self, name):
        super().__delitem__(name)
        delattr(self.kind, name)


def _is_others(module_name):
    """PyTorch's, Python's, or our own."""
    file = getattr(sys.modules.get(module_name), "__file__", None) or ""
    return module_name != "__main__" and not (os.path.isabs(file) and _is_file_of_script(file))  # torch.ops says no more than a name


_is_file_of_script = functools.cache(ends.is_file_of_script)  # PyTorch is there, so its answers stay


def _is_scripts(module_name):
    """A module of Python that the script is, or that lies beside it."""
    return not _is_others(module_name) and not ends.is_installed(getattr(sys.modules[module_name], "__file__", None) or "")


def _is_object(item):
    """One that keeps what the script wants, as far as its class is known: none of PyTorch's, which keep compiled code, nor of Python's."""
    kind = type(item)
    if issubclass(kind, (torch.Tensor, threading.Thread, types.ModuleType)) or not isinstance(getattr(item, "__dict__", None), dict):
        return False
    return issubclass(kind, _OBJECTS) or not _is_others(kind.__module__)


def _variables_of(modules):
    """The script's variables that a call of a module with these submodules can reach: dicts. Without this look at callers' frames the case
    variables_of_a_function of kept.py (semantics) fails."""
    forwards = [f for f in {getattr(type(m), "forward", None) for _, m in modules} if isinstance(f, types.FunctionType)]
    found = [vars(m) for name, m in list(sys.modules.items()) if isinstance(m, types.ModuleType) and _is_scripts(name)]
    found += [f.__globals__ for f in forwards if not _is_others(f.__module__)]
    found += [_Cells(f) for f in forwards if f.__closure__]
    frame = sys._getframe(1)
    while frame is not None:  # lists and objects that functions called now have, and the model, too
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED and _is_scripts(frame.f_globals.get("__name__")):
            found.append(dict(frame.f_locals))
            if sys.version_info < (3, 13):
                frame.f_locals.clear()  # a copy that the frame keeps, and would keep alive what the script drops
        frame = frame.f_back
    return found


def _namespaces_of(modules, reaches):
    """[(path, object, its variables)] of `modules`. If it `reaches` further, also of the objects that they refer to, and the script's variables."""
    found = {}
    for name, m in modules:
        scripted = isinstance(m, torch.jit.ScriptModule)
        variables = {"_parameters": dict(m.named_parameters(recurse=False)), "_buffers": dict(m.named_buffers(recurse=False))} if scripted else vars(m)
        found[id(m)] = f"{name}.".lstrip("."), None if scripted else m, variables
    if not reaches:
        return list(found.values())
    for variables in _variables_of(modules):
        found[id(variables)] = "", None, variables
    reached = list(found.values())
    while reached and len(found) < OBJECTS:
        path, _, variables = reached.pop(0)
        for name, value in list(variables.items()):
            if name.startswith("__"):
                continue
            for item in (value, *_items_of(value)):
                if id(item) in found:
                    continue
                if isinstance(item, type):
                    if not _is_scripts(item.__module__):
                        continue
                    found[id(item)] = f"{path}{name}.", None, _OfClass(item)
                elif isinstance(item, types.FunctionType) and item.__closure__ and _is_scripts(item.__module__):
                    found[id(item)] = "", None, _Cells(item)
                elif _is_object(item):
                    found[id(item)] = f"{path}{name}.", item, vars(item)
                else:
                    continue
                reached.append(found[id(item)])
    return list(found.values())


def _items_of(value):
    """Of a container; of a long one, the last."""
    return _some(dict.values(value) if isinstance(value, dict) else value if isinstance(value, (list, tuple, collections.deque)) else ())


def _some(items):
    items = list(items)
    return items if len(items) <= ITEMS else items[-LAST:]


def _walk(path, key, value, seen):
    """Yields (path, key, leaf or container) of a variable. `key` tells the place, whatever other names lead there."""
    if isinstance(value, _LEAVES):
        if not torch.nn.parameter.is_lazy(value):
            yield path, key, value
    elif _is_array(value):
        yield path, id(value), value
    elif isinstance(value, _WALKED) and id(value) not in seen and value is not sys.modules:
        seen.add(id(value))
        if not isinstance(value, tuple):
            yield path, id(value), value
        if not isinstance(value, set):
            for name, item in _some(dict.items(value) if isinstance(value, dict) else enumerate(value)):
                yield from _walk(f"{path}[{name!r}]", (id(value), repr(name)), item, seen)


def _is_array(value):
    """An array of NumPy's that is small enough to be kept."""
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray" and value.dtype.kind in "biufc" and value.nbytes <= SMALL_BYTES


def _all(namespaces):
    seen = set()
    for path, _, variables in namespaces:
        if isinstance(variables, (_Cells, _OfClass)):
            variables.look()
        for name, value in list(variables.items()):
            if name in _REGISTERED:
                for key, item in value.items():
                    if item is not None and not torch.nn.parameter.is_lazy(item):
                        yield path + key, None, item
            elif name not in _OF_MODULE and not name.startswith("__"):
                yield from _walk(path + name, (id(variables), name), value, seen)


def _noted(value):
    """What tells that a number, a word or a container has changed."""
    if isinstance(value, set):
        return repr(sorted(map(repr, _some(value)))) if all(isinstance(item, _PLAIN) for item in _some(value)) else len(value)
    if _is_array(value):
        return zlib.crc32(value.tobytes())
    return len(value) if isinstance(value, _CONTAINERS) else value


class Versions:
    """What a module's tensors and numbers are, to see what a call changes. It looks at what most modules have without their paths, since every
    call needs it."""

    def __init__(self, modules):
        self.namespaces = _namespaces_of(modules, reaches=False)
        self.before = [dict(variables) for _, _, variables in self.namespaces]
        self.tensors = {id(t): (weakref.ref(t), _version(t)) for t in self._tensors()}  # another one may get the address of one that is gone
        self.numbers = {path: _noted(value) for path, value in self._in_containers() if not isinstance(value, torch.Tensor)}

    def _tensors(self):
        for _, _, variables in self.namespaces:
            for tensors in (variables["_parameters"], variables["_buffers"]):
                for t in tensors.values():
                    if t is not None:
                        yield t
        for _, value in self._in_containers():
            if isinstance(value, torch.Tensor):
                yield value

    def _in_containers(self):
        """(path, value), and in attributes."""
        seen = set()
        for path, _, variables in self.namespaces:
            for name, value in variables.items():
                if type(value) not in _SIMPLE and name not in _OF_MODULE and name not in _REGISTERED:
                    for place, _, item in _walk(path + name, None, value, seen):
                        yield place, item

    def _is_another(self, t):
        was, version = self.tensors.get(id(t), (type(None), 0))
        return was() is not t or version != _version(t)

    def changed(self):
        """{path: tensor, number or word} of those that have changed since, or are others now."""
        found = {}
        for (path, _, variables), before in zip(self.namespaces, self.before):
            for tensors in (variables["_parameters"], variables["_buffers"]):
                for name, t in tensors.items():
                    if t is not None and self._is_another(t):
                        found[path + name] = t
            for name, value in variables.items():
                if type(value) in _SIMPLE and value is not before.get(name, found) and _differ(before.get(name), value):
                    found[path + name] = value
        for path, value in self._in_containers():
            if isinstance(value, torch.Tensor):
                if self._is_another(value):
                    found[path] = value
            elif _differ(self.numbers.get(path), _noted(value)):
                found[path] = _noted(value)
        return found


def _differ(one, other):
    return type(one) is not type(other) or one != other and not (one != one and other != other)


class Snapshot:
    """All that a call may change, and the random numbers."""

    def __init__(self, modules):
        self.states, self.namespaces = streams.states(), _namespaces_of(modules, reaches=True)
        self.before = [(item, type(item), variables, dict(variables)) for _, item, variables in self.namespaces]
        self.generators = [(g, streams.state_of(g)) for g in _generators_of(self.namespaces)]
        self.tensors, self.numbers, self.shared = {}, {}, []  # shared: (path, reference) of tensors that other processes may have
        self.containers = [(value, _copied(value)) for item, *_, before in self.before if isinstance(item, torch.nn.Module)
                           for value in before.values() if isinstance(value, _CONTAINERS)]  # a lazy module's hooks
        buffers = {id(b) for _, m in modules for b in m._buffers.values()}
        kept = small = 0
        for path, key, value in _all(self.namespaces):
            if not isinstance(value, torch.Tensor):
                self.numbers[key] = _noted(value)
                if isinstance(value, _CONTAINERS) or _is_array(value):
                    self.containers.append((value, _copied(value)))
            elif id(value) not in self.tensors:
                if value.device.type == "cpu" and value.is_shared() and store.entry_of(value) is None:
                    self.shared.append((path, weakref.ref(value)))
                size = value.numel() * value.element_size()
                if id(value) in buffers:
                    keeps = kept + size <= KEPT_BYTES
                    kept += size * keeps
                else:
                    keeps = size <= SMALL_BYTES and small + size <= SMALL_KEPT_BYTES
                    small += size * keeps
                self.tensors[id(value)] = path, value, _version(value), _kept(value) if keeps and rows.is_plain(value) else None

    def changed(self):
        """{path: a copy} of what has changed since, or is another one now."""
        found = {}
        for path, key, value in _all(self.namespaces):
            if isinstance(value, torch.Tensor):
                known = self.tensors.get(id(value))
                if known is None or _has_changed(value, *known[2:]):
                    found[path] = value.detach().clone()
            elif _differ(self.numbers.get(key), _noted(value)):
                found[path] = _noted(value)
        return found

    def put_back(self):
        """Undoes all changes. Returns the paths of tensors that were too large to be kept."""
        streams.restore(self.states)
        for generator, state in self.generators:
            streams.restore_one(generator, state)
        for container, before in self.containers:
            _refill(container, before)
        for item, kind, variables, before in self.before:
            if isinstance(variables, (_Cells, _OfClass)):
                variables.look()
            _refill(variables, before, _is_watched if item is None else None)
            if type(item) is not kind and item is not None:  # a lazy module
                item.__class__ = kind
        lost = []
        for key, (path, t, version, before) in self.tensors.items():
            if not _has_changed(t, version, before):
                continue
            if before is None:
                lost.append(path)
            else:
                t.data.copy_(before)  # not a change for autograd
            self.tensors[key] = path, t, _version(t), before
        return lost


def _is_watched(name, value):
    """Whether a variable of the script is put back: no function or module, which compilers put there."""
    return not name.startswith("__") and (isinstance(value, (*_LEAVES, *_WALKED, type(None))) or _is_object(value))


def _generators_of(namespaces):
    """Generators of random numbers that the script has made."""
    kinds, found = streams.generator_kinds(), {}
    for _, _, variables in namespaces:
        for value in list(variables.values()):
            found.update((id(item), item) for item in (value, *_items_of(value)) if isinstance(item, kinds))
    return found.values()


class Given:
    """The arguments of a call, and what was made of them for this rank. `keeps`: they can be put back."""

    def __init__(self, whole, own, keeps=False):
        self.tensors = [(t, _version(t), _kept(t) if keeps else None) for t, _ in rows.leaves(whole) if isinstance(t, torch.Tensor)]
        self.containers = {}
        for value in (whole, own):
            self._note(value)

    def _note(self, value):
        if isinstance(value, (*_CONTAINERS, collections.abc.MutableMapping)) and id(value) not in self.containers:
            self.containers[id(value)] = value, _copied(value)
        if isinstance(value, (tuple, *_CONTAINERS, collections.abc.MutableMapping)):
            for item in value.values() if isinstance(value, collections.abc.Mapping) else value:
                self._note(item)

    def changed(self):
        return any(_version(t) != version for t, version, _ in self.tensors) or any(not _is_same(*both) for both in self.containers.values())

    def put_back(self):
        for t, version, before in self.tensors:
            if _version(t) != version:
                t.data.copy_(before)
        for container, before in self.containers.values():
            _refill(container, before)


def _copied(container):
    if _is_array(container):
        return container.copy()
    return dict(_pairs(container)) if isinstance(container, collections.abc.Mapping) else list(container)


def _pairs(mapping):
    """Of a mapping; a dict's own, whatever its class makes of them."""
    return list(dict.items(mapping) if isinstance(mapping, dict) else mapping.items())


def _is_same(container, before):
    if len(container) != len(before):
        return False
    if isinstance(before, dict):
        return all(before.get(key, before) is value for key, value in _pairs(container))
    return all(one is other for one, other in zip(container, before))


def _refill(container, before, is_watched=None):
    """Other threads may use it: what has not changed stays as it is."""
    if _is_array(container):
        if container.flags.writeable:
            container[...] = before
    elif isinstance(before, dict):
        now = dict(_pairs(container))
        for key in [key for key, value in now.items() if key not in before and (is_watched is None or is_watched(key, value))]:
            del container[key]
        for key, value in before.items():
            if now.get(key, now) is not value and (is_watched is None or is_watched(key, value)):
                container[key] = value
    elif not _is_same(container, before):
        container.clear()
        (container.update if isinstance(container, set) else container.extend)(before)


def _kept(t):
    """A copy, on the host: a trial must not ask a device for more than the calls that it compares."""
    return t.detach().cpu() if t.is_cuda and rows.is_plain(t) else t.detach().clone()


def _version(t):
    return 0 if t.is_inference() else t._version


def _has_changed(t, version, before):
    """Not every kernel counts what it writes."""
    return _version(t) != version if before is None else not torch.equal(t.detach().cpu(), before)
