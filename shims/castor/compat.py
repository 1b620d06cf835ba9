"""CASTOR_COMPAT=1: `colossalai` and `coati` are other names of `castor` where they are not installed.

`castor run` puts the folder `names` on Python's path. Its packages call resolve() when they are imported. The agent calls
install() in processes that have lost that path. `import colossalai.engine` gives the module castor.engine itself, not a
second copy of it. If a package of that name is installed, it is used as a whole. A name that Castor lacks is an ImportError that
says what there is instead (compat_names.py)."""
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types

from . import compat_names

NAMES = ("colossalai", "coati")
_TARGET = __package__
_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "names")


class _Finder(importlib.abc.MetaPathFinder):
    """The first finder: for a submodule of an alias, the path finder would load castor's files a second time."""

    def __init__(self, aliases):
        self.aliases = aliases  # names that are not installed stand for castor

    def find_spec(self, fullname, path=None, target=None):
        root, _, rest = fullname.partition(".")
        if root == _TARGET and rest:
            # `from colossalai.engine import nothing` looks for a submodule, by the module's own name.
            if self.aliases and not _is_module(fullname):
                raise _missing(fullname)
            return None
        if root not in NAMES:
            return None
        if not rest:
            return self._root(fullname)
        if sys.modules.get(root) is not sys.modules.get(_TARGET):
            return None  # an installed package's
        real = compat_names.real_name(fullname, _TARGET)
        if rest.partition(".")[0] in compat_names.OWN or not _is_module(real):
            raise _missing(real, fullname)
        return _spec(fullname, real)

    def _root(self, name):
        spec = self._installed(name)
        if spec is None and not self.aliases:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return spec or _spec(name, _TARGET)

    def _installed(self, name):
        path = [entry for entry in sys.path if not _is_names(entry)]
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path if finder is importlib.machinery.PathFinder else None, None)
            # A spec without an origin is a folder without __init__.py: any directory of that name gives one.
            if spec is not None and spec.loader is not None and spec.origin is not None:
                return spec
        return None


class _Loader(importlib.abc.Loader):
    def __init__(self, real):
        self.real = real

    def create_module(self, spec):
        self.module = importlib.import_module(self.real)
        self.spec = self.module.__spec__
        return self.module

    def exec_module(self, module):
        module.__spec__ = self.spec  # the import machinery has set the alias's spec
        if not hasattr(module, "__path__"):
            module.__path__ = []  # a name that it lacks is looked for as a submodule then, and the finder says what there is
        if self.real == f"{_TARGET}.launching":
            module.__class__ = _Launching


class _Launching(types.ModuleType):
    """`import colossalai.initialize` puts this module in the place of the function colossalai.initialize."""

    def __call__(self, *args, **kwargs):
        return self.initialize(*args, **kwargs)


def _spec(name, real):
    return importlib.machinery.ModuleSpec(name, _Loader(real), origin=f"castor's {real}")


def _is_names(entry):
    return os.path.abspath(entry or os.curdir) == _FOLDER


def _is_module(name):
    """Whether there is such a module of castor. Its parents are imported, as an import of it does."""
    if name in sys.modules:
        return True
    parent = name.rpartition(".")[0]
    if not parent:
        return name == _TARGET
    if not _is_module(parent):
        return False
    path = getattr(importlib.import_module(parent), "__path__", None)
    return bool(path) and importlib.machinery.PathFinder.find_spec(name, path) is not None


def _missing(real, name=None):
    """The error for a module, or a name of a module, that Castor does not have. `name`: what the script has written, if that is known.
    The error has no `name` of its own: the import machinery passes over errors that are named as it expects."""
    parent = real.rpartition(".")[0]
    while not _is_module(parent):
        parent = parent.rpartition(".")[0]
    return ModuleNotFoundError(compat_names.explain(real, name or real, parent, importlib.import_module(parent)))


def install(aliases=True):
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(aliases))


def stands_for_castor():
    """Whether a script has imported castor by another name."""
    return any(name in sys.modules and sys.modules[name] is sys.modules.get(_TARGET) for name in NAMES)


def resolve(name):
    """Called while names/`name` is imported: replaces it by the module that the name stands for. ModuleNotFoundError: there is
    none; the folder was left on the path of a process without the option."""
    install(os.environ.get("CASTOR_COMPAT") == "1")
    del sys.modules[name]
    importlib.import_module(name)
