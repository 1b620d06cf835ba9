"""CASTOR_COMPAT=1: `colossalai` and `coati` are other names of `castor` where they are not installed.

`import colossalai.engine` gives the module castor.engine itself, not a second copy of it. An installed package wins, whole:
its name is not touched then."""
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys

NAMES = ("colossalai", "coati")
_TARGET = __package__


class _Finder(importlib.abc.MetaPathFinder):
    """Comes first: below a name that is castor's, the path finder would load castor's files a second time."""

    def find_spec(self, fullname, path=None, target=None):
        root, _, rest = fullname.partition(".")
        if root not in NAMES:
            return None
        if not rest:
            return None if self._installed(fullname) else _spec(fullname, _TARGET)
        if sys.modules.get(root) is not sys.modules.get(_TARGET):
            return None  # an installed package's
        real = f"{_TARGET}.{rest}"
        try:
            if importlib.util.find_spec(real) is None:
                return None
        except ModuleNotFoundError:
            return None
        return _spec(fullname, real)

    def _installed(self, name):
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, None, None)
                # Without a loader it is a folder without __init__.py, which any directory of that name would be.
                if spec is not None and spec.loader is not None and spec.origin is not None:
                    return True
        return False


class _Loader(importlib.abc.Loader):
    def __init__(self, real):
        self.real = real

    def create_module(self, spec):
        self.module = importlib.import_module(self.real)
        self.spec = self.module.__spec__
        return self.module

    def exec_module(self, module):
        module.__spec__ = self.spec  # the import machinery has put the other name's there


def _spec(name, real):
    return importlib.machinery.ModuleSpec(name, _Loader(real), origin=f"castor's {real}")


def install():
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
