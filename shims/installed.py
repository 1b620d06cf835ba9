"""The package castor, for Python in whose environment Castor is installed: this file is castor.py in site-packages.

The package lies in lib/castor of the prefix, beside the entry point by which PyTorch loads Castor's agent; on Python's path, every
`import torch` would. So this module only puts the package of that folder in its own place. In a process of `castor run` whose
Python ignores PYTHONPATH it is the package that belongs to the library there."""
import importlib.util
import os
import sys


def _package():
    for library in os.environ.get("LD_PRELOAD", "").replace(":", " ").split():
        if os.path.basename(library).startswith("libcastor.so"):
            return os.path.join(os.path.dirname(library), "castor", "castor")
    return os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..", "lib", "castor", "castor"))


def _load(package):
    file = os.path.join(package, "__init__.py")
    if not os.path.exists(file):
        raise ImportError(f"castor: {file} is missing: install Castor again", name="castor")
    spec = importlib.util.spec_from_file_location(__name__, file, submodule_search_locations=[package])
    sys.modules[__name__] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


_load(_package())
