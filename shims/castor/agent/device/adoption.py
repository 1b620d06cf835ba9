"""How model data comes home, with no edit of the script.

Parameters and buffers that a module moves to a device are born in homes. Others, made on the device itself or loaded, get a home when
they come to an optimizer. Gradients get one as soon as they are accumulated, once memory is short; optimizer states in the first step
(parts.py), or when they are loaded. What stays outside is told once."""
import atexit
import contextlib
import functools
import threading

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from .. import core, patching
from ..common import store, tensors
from ..precision import masters
from . import homes, pools, shortage

_known = WeakTensorKeyDictionary()  # parameter: its address when it was last seen
_pressed = core.options.device_budget != -1  # some model data is on the host, or may come to be there
_installed = False
_outside = set()  # the reasons told


def pressed():
    """Whether memory is short: then gradients get homes. It stays so."""
    global _pressed
    _pressed = _pressed or bool(core.homes_on_host())
    return _pressed


def serves(p):
    """Whether a parameter's data is this package's business."""
    return _installed and p.is_cuda


def step_ended():
    """An optimizer step is over."""
    if not homes.devices():
        return
    core.device_step_end()
    shortage.tell(lambda: list(_known))
    if core.options.debug:
        for device in homes.devices():
            core.device_check(device)


def look(parameters, in_step=False):
    """Gives a home to those parameters on devices that have none, or another one than at the last look. in_step: this stream reads them
    next; else others may still write to them."""
    here = [p for p in parameters if homes.can_have(p)]
    if not here:
        return
    for p, tier in zip(here, homes.tiers(here)):
        if _known.get(p) == p.data_ptr() and tier != core.HOME_NONE:
            continue
        if tier == core.HOME_NONE and not _come_home(p, in_step):
            continue
        core.storage_add(p.device.index, p.data_ptr(), tensors.extent(p))
        if p not in _known and p.requires_grad and p.is_leaf:
            p.register_post_accumulate_grad_hook(_gradient_accumulated)
        _known[p] = p.data_ptr()


def forget(*some):
    """These tensors get other contents (torch.utils.swap_tensors): the next look finds them anew."""
    for t in some:
        _known.pop(t, None)


def adopt_masters(parameters):
    """CASTOR_PRECISION: parameters on devices become 16 bits, with masters in homes of states."""
    masters.adopt_on_devices([p for p in parameters if serves(p)], _narrow)


def _narrow(lowered):
    """masters._narrow. All float values move before, so that the memory in which they were is free for the 16-bit ones."""
    devices = {values.device.index for _, values in lowered if values.is_cuda and homes.available(values.device.index)}
    for _, values in lowered:
        if values.device.index in devices:
            homes.move(values, homes.STATE)
    for device in devices:
        homes.release(homes.PARAMETER, device)
    for t, values in lowered:
        with homes.born(homes.PARAMETER, values.device.index) if values.device.index in devices else contextlib.nullcontext():
            t.data = values.to(masters.dtype)


def _come_home(p, in_step):
    if not homes.available(p.device.index):
        return False
    if homes.move(p, homes.PARAMETER, drain=not in_step):
        return True
    _tell(f"a parameter of shape {tuple(p.shape)} on {p.device} stays outside of the budget: its memory belongs to another library, "
          "or a graph was captured before it had a home")
    return False


def _tell(text):
    if text not in _outside:
        _outside.add(text)
        core.log(1, text.encode())


@torch.no_grad()
def gradients_come_home(parameters):
    """Gradients come into homes once memory is short, in the order of the stream, each with everything else that lies in its
    storage. The next ones are added there."""
    grads = [p.grad for p in parameters if p.grad is not None and not p.grad.requires_grad and homes.can_have(p.grad)]
    if not grads or not pressed():
        return
    for grad, tier in zip(grads, homes.tiers(grads)):
        if tier == core.HOME_NONE:
            homes.move(grad, homes.GRADIENT)


def _gradient_accumulated(p):
    gradients_come_home((p,))


# ---- births


def _device_of(fn, module):
    """The device to which `fn` of Module._apply moves tensors; None: none, or it is not known. CUDA is initialized only if the
    script itself is about to do so."""
    first = next(iter(module.parameters()), None)
    first = next(iter(module.buffers()), None) if first is None else first
    if first is None or not torch.cuda.is_available():
        return None
    try:
        with torch.no_grad():
            device = fn(torch.empty(0, dtype=first.dtype, device=first.device)).device
    except Exception:  # `fn` takes no other tensor than the module's own
        return first.device.index if first.device.type == "cuda" else None
    return device.index if device.type == "cuda" else None


def _apply_in_homes(apply):
    thread = threading.local()  # .within: it moves a module, and this is one of its submodules

    @functools.wraps(apply)
    def _apply(self, fn, recurse=True):
        device = _device_of(fn, self) if not getattr(thread, "within", False) and store.active() else None
        if device is None:
            return apply(self, fn, recurse)
        thread.within = True
        try:
            with homes.born(homes.PARAMETER, device):
                result = apply(self, fn, recurse)
        finally:
            thread.within = False
        look(self.parameters())
        return result

    return _apply


def _current_device():
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None


def _born_on_current(kind):
    """Wraps a function that allocates on the current device, if CUDA is in use."""

    def wrap(function):
        @functools.wraps(function)
        def run(*args, **kwargs):
            device = _current_device() if store.active() else None
            with contextlib.nullcontext() if device is None else homes.born(kind, device):
                return function(*args, **kwargs)

        return run

    return wrap


def _copied_in_homes(deepcopy):
    @functools.wraps(deepcopy)
    def __deepcopy__(self, memo):
        if self.device.type != "cuda" or not store.active():
            return deepcopy(self, memo)
        with homes.born(homes.PARAMETER, self.device.index):
            return deepcopy(self, memo)

    return __deepcopy__


def _look_after(function):
    @functools.wraps(function)
    def run(self, *args, **kwargs):
        result = function(self, *args, **kwargs)
        if store.active():
            look(store.parameters_of(self))
        return result

    return run


def _keeps_addresses(capture_begin):
    @functools.wraps(capture_begin)
    def run(self, *args, **kwargs):
        homes.keep_addresses()
        return capture_begin(self, *args, **kwargs)

    return run


def _say_at_end():
    if not store.active():
        return
    for device in homes.devices():
        found = homes.statistics(device)
        peak, back = sum(kind[core.HOME_HOST] for kind in found.peak_bytes), found.flips[core.HOME_DEVICE]
        core.log(2, f"device {device} had at most {peak} bytes of model data at a time on the host; {back} times some came back".encode())


def install():
    global _installed
    _installed = True
    atexit.register(shortage.tell, lambda: list(_known), last=True)  # of passes without a step
    if core.options.debug:
        atexit.register(_say_at_end)
    pools.install()
    patching.replace("torch.nn.Module._apply", _apply_in_homes)
    patching.replace("torch.load", _born_on_current(homes.PARAMETER))
    patching.replace("torch.optim.Optimizer.load_state_dict", _born_on_current(homes.STATE))
    patching.replace("torch.nn.Parameter.__deepcopy__", _copied_in_homes)
    patching.replace("torch.Tensor.__deepcopy__", _copied_in_homes)
    patching.replace("torch.cuda.CUDAGraph.capture_begin", _keeps_addresses)
    patching.replace("torch.optim.Optimizer.__init__", _look_after)
    patching.replace("torch.optim.Optimizer.add_param_group", _look_after)
