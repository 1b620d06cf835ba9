"""The agent: found by PyTorch at the end of `import torch` (entry point of the group torch.backends).

It turns PyTorch's Python surface into calls of the core. An exception in here never breaks `import torch`."""
import os
import sys


def attach():
    try:
        _attach()
    except Exception as error:  # noqa: BLE001 - whatever it is, the script's import must go on
        own = str(error).startswith("castor: ")
        _refuse(str(error)[8:] if own else f"the agent could not attach: {type(error).__name__}: {error}")


def _attach():
    import torch

    from . import core
    from .nodes import groups
    from .process import stacks

    if not core.bind():
        return  # libcastor.so is not in this process: nothing was asked for
    core.attach()
    groups.install()
    stacks.install()
    if core.option_text("CASTOR_COMPAT") == "1":
        from .. import compat

        compat.install()
    if not core.plugin_engine():
        if core.option_text("CASTOR_PRECISION") != "fp32":
            core.log(1, b"CASTOR_PRECISION has no effect under the plugin none, which only observes: choose another plugin")
        from . import observe

        observe.install()
        return
    try:
        # The library has looked before (torch/version.py, at the import of torch._C); this is what the package says.
        core.torch_check(str(torch.__version__).encode())
    except core.Error as error:
        _refuse(str(error).removeprefix("castor: "))
        return
    from . import patching, plugin

    try:
        plugin.install()
    except BaseException:
        patching.undo_all()  # what steps aside does so whole
        raise


def _refuse(reason):
    """A plugin that cannot be applied stops the run before training starts, or steps aside (CASTOR_ON_ERROR)."""
    from . import core

    try:
        abort = core.plugin_engine() and core.option_text("CASTOR_ON_ERROR") == "abort"
        if abort:
            core.refuse(f"{reason} (CASTOR_ON_ERROR=passthrough trains without the plugin)".encode())
        else:
            core.passthrough(reason.encode())
    except (AttributeError, NameError):
        abort = False
        sys.stderr.write(f"castor: {reason}\n")
    if abort:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
