"""Imports torch._dynamo only when something is compiled.

Every optimizer and every DistributedDataParallel imports the compiler, only to tell it what not to compile. That costs each
rank 66 MiB of Python's objects and a second at its start. A stand-in module answers those calls. Any other access loads the
real module. Without the stand-in test_the_compiler_is_not_imported (tests/explicit) fails."""
import functools
import importlib
import importlib.machinery
import importlib.util
import sys
import threading
import types

import torch

NAME = "torch._dynamo"


def wraps(stock):
    """functools.wraps; and torch.jit.script compiles `stock`, which it finds behind a wrapper by these attributes."""

    def decorate(wrapper):
        functools.update_wrapper(wrapper, stock)
        wrapper.__original_fn, wrapper.__script_if_tracing_wrapper = stock, True
        return wrapper

    return decorate


def _nothing(*args, **kwargs):
    """As the real function does while nothing is compiled."""


class _Disabled:
    """A function of PyTorch's own that must not be compiled. Calls it plainly until the compiler is loaded."""

    def __init__(self, function, recursive):
        self.function, self.recursive, self.call = function, recursive, function

    def __call__(self, *args, **kwargs):
        return self.call(*args, **kwargs)

    def tell(self, dynamo):
        self.call = dynamo.disable(self.function, self.recursive, wrapping=False)
        if getattr(self.function, "__dynamo_disable", None) is self:
            setattr(self.function, "__dynamo_disable", self.call)


class _Submodule:
    """A module inside torch._dynamo that has only `answers` before torch._dynamo is loaded."""

    def __init__(self, name, **answers):
        self.name, self.answers = name, answers

    def __getattr__(self, name):
        if name in self.answers and not loaded():
            return self.answers[name]
        return getattr(importlib.import_module(f"{NAME}.{self.name}"), name)


class _Absent(types.ModuleType):
    def __getattr__(self, name):
        if not loaded():
            if name in _answers:
                return _answers[name]
            if name.startswith("__") and name not in ("__path__", "__all__"):
                raise AttributeError(f"module {NAME!r} has no attribute {name!r}")  # code that walks over all modules asks
        return getattr(_load(), name)

    def __setattr__(self, name, value):
        if name in ("__spec__", "__loader__", "__file__", "__package__"):
            super().__setattr__(name, value)
        else:
            setattr(_load(), name, value)

    def __delattr__(self, name):
        delattr(_load(), name)

    def __dir__(self):
        return dir(_load())


class _Finder:
    """`import torch._dynamo.x` asks the package for its path. That loads the package, and torch._dynamo.x with it, which must
    not be loaded again."""

    def find_spec(self, name, path=None, target=None):
        if not name.startswith(NAME + ".") or name not in sys.modules:
            return None
        return importlib.machinery.ModuleSpec(name, _Known(sys.modules[name]))


class _Known:
    def __init__(self, module):
        self.module = module

    def create_module(self, spec):
        return self.module

    def exec_module(self, module):
        pass


_lock = threading.Lock()
_absent = None
_disabled = []
not_in_graphs = []  # functions of Castor that replace ones of PyTorch that the compiler knows


def _disable(function=None, recursive=True, *, reason=None, wrapping=True):
    if function is None or wrapping or reason is not None:  # not PyTorch's own use
        return _load().disable(function, recursive, reason=reason, wrapping=wrapping)
    _disabled.append(_Disabled(function, recursive))
    return _disabled[-1]


_answers = {
    "graph_break": _nothing,
    "disable": _disable,
    "trace_rules": _Submodule("trace_rules", clear_lru_cache=_nothing),
    "utils": _Submodule("utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"),  # the default of config.optimize_ddp
}


def loaded():
    return sys.modules.get(NAME) is not _absent


def _load():
    with _lock:  # not over the import, which has its own lock
        mine = not loaded()
        if mine:
            del sys.modules[NAME]
            if vars(torch).get("_dynamo") is _absent:
                del torch._dynamo
    dynamo = importlib.import_module(NAME)
    if mine:
        dynamo.trace_rules.add(__package__.partition(".")[0])  # Castor's wrappers are called, not compiled
        for disabled in _disabled:
            disabled.tell(dynamo)
        for function in not_in_graphs:
            dynamo.disallow_in_graph(function)
    return dynamo


def install():
    global _absent
    spec = importlib.util.find_spec(NAME)
    if spec is None or NAME in sys.modules:
        return
    absent = _Absent(NAME)
    absent.__spec__, absent.__loader__, absent.__file__, absent.__package__ = spec, spec.loader, spec.origin, NAME
    sys.meta_path.insert(0, _Finder())
    _absent = sys.modules[NAME] = torch._dynamo = absent
