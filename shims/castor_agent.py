"""Where PyTorch finds the agent (an entry point of the group torch.backends), under a name that no script has.

`castor` may be the script's own: a folder or file of that name beside it comes first on Python's path. The script's `import castor` gives
that one then, and the agent's package is loaded under another name. It has no API there that a script could import."""
import importlib
import importlib.util
import os
import sys

_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "castor", "__init__.py")
_OTHER_NAME = "_castor"


def _is_ours():
    try:
        spec = importlib.util.find_spec("castor")
    except ValueError:  # a module that was not imported, but put there
        return False
    return spec is not None and spec.has_location and os.path.exists(spec.origin) and os.path.samefile(spec.origin, _FILE)


def attach():
    name = "castor"
    if not _is_ours():
        name = _OTHER_NAME
        spec = importlib.util.spec_from_file_location(name, _FILE, submodule_search_locations=[os.path.dirname(_FILE)])
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    importlib.import_module(name + ".agent").attach()
