"""Castor's explicit API, thin over libcastor.so. Under `castor run` it is importable in any Python command.

Submodules that need PyTorch are imported on first use: `import castor` alone costs nothing."""

_SUBMODULES = {
    "accelerator", "booster", "checkpoint_io", "cluster", "device", "engine", "gemini", "interface", "lazy", "logging", "nn", "pipeline", "quantization",
    "tensor", "trainer", "utils",
}
_FUNCTIONS = {"initialize": "launching", "launch": "launching", "launch_from_torch": "launching", "memory_stats": "memory"}


def __getattr__(name):
    import importlib

    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("castor-agent")
    if name in _SUBMODULES:
        return importlib.import_module("." + name, __name__)
    if name in _FUNCTIONS:
        return getattr(importlib.import_module("." + _FUNCTIONS[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), "__version__", *_SUBMODULES, *_FUNCTIONS})
