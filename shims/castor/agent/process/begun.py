"""A job that this process has begun, since no `castor run` has (interpose/job/begin.h), is the job of all that it starts. A launcher that passes on
PYTHONPATH and not LD_PRELOAD would have plain PyTorch train: that is refused when it trains."""
import os
import sys

from torch.optim.optimizer import register_optimizer_step_pre_hook

from .. import core


def pass_on():
    if "CASTOR_JOB" in os.environ:
        return
    core.read_options()
    mine = {"CASTOR_JOB": core.options.job, "CASTOR_BEGUN": core.options.begun, "CASTOR_LOG_DIR": core.options.log_dir}
    os.environ.update({name: value for name, value in mine.items() if value})


def without_library():
    """libcastor.so is not in this process. Options are read here, as nothing else can read them."""
    plugin = os.environ.get("CASTOR_PLUGIN", "none")
    if plugin == "none" or os.environ.get("CASTOR_ON_ERROR") == "passthrough":
        return

    def refuse(*_):
        if hasattr(core.options, "plugin"):  # the script has loaded the library beside PyTorch (core.require), and asks it itself
            return
        sys.stdout.flush()
        sys.stderr.write(f"castor: plugin {plugin} cannot be applied: LD_PRELOAD has not brought libcastor.so into this process. Pass on what `castor env` "
                         "prints, or start the command by castor run (CASTOR_ON_ERROR=passthrough trains without the plugin)\n")
        sys.stderr.flush()
        os._exit(1)

    register_optimizer_step_pre_hook(refuse)
