"""CASTOR_COMPAT=1: `colossalai` and `coati` are other names of `castor` where they are not installed.

`castor run` puts the folder `names` on Python's path. Its packages call resolve() when they are imported. The agent calls
install() in processes that have lost that path. `import colossalai.engine` gives the module castor.engine itself, not a
second copy of it. If a package of that name is installed, it is used as a whole."""
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

NAMES = ("colossalai", "coati")
_TARGET = __package__
_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "names")


class _Finder(importlib.abc.MetaPathFinder):
    """The first finder: for a submodule of an alias, the path finder would load castor's files a second time."""

    def __init__(self, aliases):
        self.aliases = aliases  # names that are not installed stand for castor

    def find_spec(self, fullname, path=None, target=None):
        root, _, rest = fullname.partition(".")
        if root not in NAMES:
            return None
        if not rest:
            return self._root(fullname)
        if sys.modules.get(root) is not sys.modules.get(_TARGET):
            return None  # an installed package's
        real = f"{_TARGET}.{rest}"
        try:
            known = importlib.util.find_spec(real) is not None
        except ModuleNotFoundError:
            known = False
        return _spec(fullname, real) if known else None

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


def _spec(name, real):
    return importlib.machinery.ModuleSpec(name, _Loader(real), origin=f"castor's {real}")


def _is_names(entry):
    return os.path.abspath(entry or os.curdir) == _FOLDER


def install(aliases=True):
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(aliases))


def resolve(name):
    """Called while names/`name` is imported: replaces it by the module that the name stands for. ModuleNotFoundError: there is
    none; the folder was left on the path of a process without the option."""
    install(os.environ.get("CASTOR_COMPAT") == "1")
    del sys.modules[name]
    importlib.import_module(name)
