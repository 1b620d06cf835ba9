"""The agent. PyTorch loads it at the end of `import torch` (an entry point of the group torch.backends).

It turns PyTorch's Python events into calls of the core. An exception in here never breaks `import torch`."""
import os
import platform
import sys


def attach():
    try:
        _attach()
    except Exception as error:  # noqa: BLE001 - whatever it is, the script's import must go on
        own = str(error).startswith("castor: ")
        _refuse(str(error)[8:] if own else f"the agent could not attach: {type(error).__name__}: {error}")


def _attach():
    import torch

    from . import core, patching
    from .nodes import process_groups
    from .process import begun, ends, forking, phases, serving, stacks

    if not core.bind():
        begun.without_library()
        return
    forking.fork_ranks()
    if serving.start():
        return  # the server of a launcher's ranks, which attach when they import torch
    core.attach()
    begun.pass_on()
    core.versions_tell(str(torch.__version__).encode(), platform.python_version().encode())
    stacks.install()
    ends.install()
    if core.options.compat:
        from .. import compat
        from . import without_gpu

        compat.install()
        without_gpu.install()
    if core.options.checkpoint != "plain":
        from . import saving

        saving.install()
    patching.keep()
    phases.install()
    patching.replace("torch.multiprocessing.spawn._wrap", ends.spawned)
    process_groups.install()
    if core.options.rehearse_devices:
        from . import rehearsal

        rehearsal.install()
    if not core.plugin_engine():
        if core.options.precision != "fp32":
            core.log(1, b"CASTOR_PRECISION has no effect under the plugin none, which only observes: choose another plugin")
        from . import observe

        observe.install()
        return
    try:
        # The library has read torch/version.py before, at the import of torch._C. This is the imported package's version.
        core.torch_check(str(torch.__version__).encode())
    except core.Error as error:
        _refuse(str(error).removeprefix("castor: "))
        return
    from . import plugin

    try:
        plugin.install()
    except BaseException:
        patching.undo_all()  # no replacement stays behind
        raise


def _refuse(reason):
    """A plugin that cannot be applied stops the run before training starts, or steps aside (CASTOR_ON_ERROR)."""
    from . import core

    try:
        abort = core.plugin_engine() and core.options.on_error == "abort"
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
