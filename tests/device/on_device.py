"""Runs scripts of tests/scripts, which are written for the CPU, on a CUDA device: as if `.cuda()` stood in them where a model's parameters
are asked for, where it is called, and where a tensor of the host meets one of the device.

    on_device.py SCRIPT[:CASE]...

Prints, for run.py, what they print, and a line for all that they saw (tests/scripts/record.py) and each file that they wrote, below `out`
in this folder. Each is a program of its own: it begins with the same random numbers and an empty device, whatever came before it. One that
raises says so, and the next one runs.
"""
import gc
import hashlib
import itertools
import os
import pickle
import runpy
import sys
import traceback

import numpy
import torch
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCRIPTS = os.path.join(TESTS, "scripts")
sys.path[1:1] = [SCRIPTS, os.path.join(TESTS, "semantics")]
HIDDEN = 1024  # of model.py's Classifier: so wide that budgets leave a part of it on the device
UNLIKE = (".metadata",)  # files that hold a number of their own
# What goes between the host and the device by itself.
CROSSING = {"copy_", "to", "type", "set_", "__set__", "__get__", "__getitem__", "__setitem__"}


def of_host(value):
    return isinstance(value, torch.Tensor) and value.device.type == "cpu" and (is_lazy(value) or value.dim() > 0)


def on_device(values):
    return tree_map(lambda value: value.cuda() if of_host(value) else value, values)


class Meeting(TorchFunctionMode):
    """Tensors of the host come to the device where they meet tensors of the device."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(function, "__name__", "") not in CROSSING:
            leaves = tree_leaves((args, kwargs))
            if any(map(of_host, leaves)) and any(isinstance(leaf, torch.Tensor) and leaf.is_cuda for leaf in leaves):
                args, kwargs = on_device((args, kwargs))
        return function(*args, **kwargs)


class Measured:
    """Bytes of model data: the parameters of a model, or those of an optimizer with their gradients and states, whichever are more."""

    most = 0

    @classmethod
    def see(cls, tensors):
        sizes = {id(one): one.numel() * one.element_size() for one in tensors
                 if isinstance(one, torch.Tensor) and not is_lazy(one) and one.layout == torch.strided}
        cls.most = max(cls.most, sum(sizes.values()))

    @classmethod
    def see_optimizer(cls, optimizer, *_):
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        states = [value for state in optimizer.state.values() for value in state.values()]
        cls.see([*parameters, *(parameter.grad for parameter in parameters), *states])


def place_models():
    named, call = torch.nn.Module.named_parameters, torch.nn.Module.__call__

    def tensors_of(module):
        return [one for part in module.modules() for one in itertools.chain(part._parameters.values(), part._buffers.values())]

    placing = False

    def place(module):
        """Returns whether there is something of it on the device."""
        nonlocal placing
        tensors = tensors_of(module)
        if any(map(of_host, tensors)) and not placing:  # .cuda() asks for parameters itself
            placing = True
            try:
                module.cuda()
            finally:
                placing = False
            Measured.see(tensors_of(module))
        return bool(tensors)

    def named_parameters(self, *args, **kwargs):
        place(self)
        return named(self, *args, **kwargs)

    def __call__(self, *args, **kwargs):  # noqa: N807
        if place(self):
            args, kwargs = on_device((args, kwargs))
        return call(self, *args, **kwargs)

    torch.nn.Module.named_parameters, torch.nn.Module.__call__ = named_parameters, __call__


def digest(value):
    """By value: what is one object in one run may be two in another."""
    if isinstance(value, dict):
        value = [(key, digest(one)) for key, one in value.items()]
    elif isinstance(value, (list, tuple)):
        value = [digest(one) for one in value]
    elif isinstance(value, numpy.ndarray):
        value = value.dtype.str, value.shape, value.tobytes()
    return hashlib.sha256(repr(value).encode()).hexdigest()[:24]


def show(folder):
    """What a script has seen and written there."""
    from compare import contents, files_of

    path = os.path.join(folder, "record", "rank0.pkl")
    if os.path.exists(path):
        with open(path, "rb") as file:
            for event, value in pickle.load(file):
                print(f"saw {event} {digest(value)}")
    for name, path in sorted(files_of(folder).items()):
        if os.path.basename(name) in UNLIKE:
            continue
        value = contents(path)
        if value is None:
            with open(path, "rb") as file:
                value = file.read()
        print(f"wrote {name} {digest(value)}")


def forget_scripts():
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(SCRIPTS):
            del sys.modules[name]


def run(word):
    """Returns whether it ended well."""
    script, _, case = word.partition(":")
    forget_scripts()
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(1)
    Measured.most, before = 0, torch.cuda.memory_allocated()
    print(f"== {word}", flush=True)
    import model

    model.Classifier.__init__.__defaults__ = (HIDDEN,)
    path, out = os.path.join(SCRIPTS, script), os.path.join("out", script)
    sys.argv = [path, "--out", out, *(("--case", case) if case else ())]
    try:
        runpy.run_path(path, run_name="__main__")
        torch.cuda.synchronize()
    except (Exception, SystemExit) as error:
        print(f"raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", flush=True)
        traceback.print_exc()
        return False
    show(os.path.join(out, case))
    print(f"# memory {torch.cuda.max_memory_allocated()} reserved {torch.cuda.max_memory_reserved()} at first {before}")
    print(f"model data {Measured.most}", flush=True)
    return True


def main():
    torch.set_num_threads(1)
    register_optimizer_step_post_hook(Measured.see_optimizer)
    place_models()
    with Meeting():
        sys.exit(0 if all([run(word) for word in sys.argv[1:]]) else 1)


if __name__ == "__main__":
    main()
