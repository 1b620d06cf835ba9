"""Real numbers on the simulated devices: what a kernel of the wheel would have computed is computed by PyTorch's CPU kernel.

`castor rehearse` puts this package on PYTHONPATH, and PyTorch calls `on` at the end of `import torch`. It replaces the
kernels that PyTorch's dispatcher has for CUDA, for every thread. A kernel's stand-in

1. waits for the stream, so that what was ordered before has happened;
2. computes the operator by its CPU kernel, on CPU tensors over the same bytes (device memory of the simulation can be read);
3. calls the wheel's own kernel, which allocates and launches as on a device, and computes nothing;
4. writes the numbers into what that kernel changed or returned.

Products, plain copies and collectives stay the simulation's own, on their streams. Random numbers are those of the CPU's generator, so
a script that draws on the device draws what it would draw on the CPU. What has no numbers raises an error that names the operator.

With SIM_NUMBERS=0 nothing is computed: only the operators of cuDNN, whose library does not start here, are replaced, by memory for their results.
"""
import atexit
import os

import torch

_library = None
_last = []  # of the passes at the end: Python drops it, and no thread


def _settle():
    """A backward pass that raised is told of before the device's thread has dropped all that it held of Python's, and that must not come after Python's end: one
    more pass comes behind it. It adds to a leaf, for what a pass returns is held by the thread too."""
    for device in range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0):
        try:
            leaf = torch.zeros((), device=f"cuda:{device}", requires_grad=True)
            twice = leaf + leaf
            _last.extend((leaf, twice, torch.ones_like(twice)))
            torch.autograd.Variable._execution_engine.run_backward((twice,), (_last[-1],), False, False, (), allow_unreachable=True, accumulate_grad=True)
        except RuntimeError:  # no memory, or the device has failed
            pass


def on():
    """Replaces the kernels; once in a process."""
    global _library
    if _library is not None or not torch.version.cuda:
        return
    from . import compiled, dispatch, operators

    _library = torch.library.Library("aten", "IMPL")
    if os.environ.get("SIM_NUMBERS") == "0":
        dispatch.replace_failing(_library, operators.stand_ins())
        return
    dispatch.replace(_library, operators.stand_ins(), operators.ordinary)
    atexit.register(_settle)
    compiled.on()
