"""What torch.compile finds in the place of the functions that Castor replaces.

Its tracer does not look into Castor's functions: it cuts the graph and calls them. A step that is compiled whole has other bits than one
that is called, so where no step needs Castor, PyTorch's own function is traced instead (`pytorchs`), as without Castor. The tracer guards
the flag: when it changes, it traces anew."""
import functools
import types

import torch

steps = types.SimpleNamespace(pytorchs=False)  # one process on devices, with room for everything


def need_castor():
    """From here on."""
    steps.pytorchs = False


def _choose(castors, pytorchs, always):
    def choose(*args, **kwargs):
        if (always or steps.pytorchs) and torch.compiler.is_compiling():
            return pytorchs(*args, **kwargs)
        return castors(*args, **kwargs)

    return choose


def unless_compiled(castors, pytorchs, in_graphs=False):
    """`castors`, but for the tracer, which knows by the file of a function whether it looks into it: PyTorch's own file here. `in_graphs`: the
    tracer finds PyTorch's function always."""
    chosen = _choose(castors, pytorchs, in_graphs)
    code = chosen.__code__.replace(co_filename=torch.optim.Optimizer.step.__code__.co_filename)
    made = types.FunctionType(code, chosen.__globals__, chosen.__name__, chosen.__defaults__, chosen.__closure__)
    functools.update_wrapper(made, pytorchs)  # not castors, which may be marked for the tracer
    vars(made).update((name, value) for name, value in vars(castors).items() if name.startswith("castor_"))
    return made
