"""Castor's explicit API, thin over libcastor.so. It is importable in any Python command that `castor run` starts, and in the Python
environment that Castor is installed in.

Submodules that need PyTorch are imported on first use: `import castor` alone costs nothing. What needs the library in front of
PyTorch is an ImportError outside of `castor run`."""
import os
import sys

_SUBMODULES = {
    "accelerator", "booster", "checkpoint_io", "cluster", "device", "engine", "gemini", "interface", "lazy", "logging", "models", "nn", "pipeline", "quantization",
    "report", "shardformer", "tensor", "trainer", "utils", "zero",
}
_LAUNCHING = ("get_default_parser", "initialize", "launch", "launch_from_openmpi", "launch_from_slurm", "launch_from_torch")
_FUNCTIONS = {**dict.fromkeys(_LAUNCHING, "launching"), "memory_stats": "memory"}


def __getattr__(name):
    import importlib

    compat = sys.modules.get(__name__ + ".compat")
    if compat is not None and not compat.stands_for_castor():
        compat = None
    if name == "__version__":
        if compat is not None:
            return compat.compat_names.VERSION  # scripts for Colossal-AI ask whether it is new enough
        # The one beside this package: outside of `castor run` that folder is not on Python's path.
        (agent,) = importlib.import_module("importlib.metadata").distributions(name="castor-agent", path=[os.path.dirname(__path__[0])])
        return agent.version
    if name in _SUBMODULES:
        return importlib.import_module("." + name, __name__)
    if name in _FUNCTIONS:
        return getattr(importlib.import_module("." + _FUNCTIONS[name], __name__), name)
    if compat is not None and not name.startswith("_"):
        raise AttributeError(compat.compat_names.explain(f"{__name__}.{name}", f"{__name__}.{name}", __name__, sys.modules[__name__]))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals()} - {"os", "sys"} | {"__version__", *_SUBMODULES, *_FUNCTIONS})
