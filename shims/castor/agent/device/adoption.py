"""How model data comes home, with no edit of the script.

Parameters and buffers that a module moves to a device are born in homes. Others, made on the device itself, get a home once memory is
short, when they come to an optimizer or in its next step: before that nothing moves that exists. Gradients get one then as soon as they
are accumulated; optimizer states in the first step (parts.py), or when they are loaded. What cannot move stays where it is, counts, and is
told once."""
import atexit
import contextlib
import functools
import threading
import weakref

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from .. import core, patching
from ..common import store, tensors, traced
from ..precision import masters
from . import addresses, gradient_sums, homes, pools, shortage

_known = WeakTensorKeyDictionary()  # parameter: the address of its home when it was last seen; 0: it had none
_held = WeakTensorKeyDictionary()  # parameter on a device that is short of memory: its bytes, which cannot move
_pressed = core.options.device_budget != -1  # some model data is on the host, or may come to be there
_installed = False
when_pressed = []  # called once memory is short
before_emptying = []  # called by torch.cuda.empty_cache: free what is held for others
placing = None  # called with `fn` of Module._apply and its device: a function that does it, in homes, and more; None: nothing more is to be done
_held_told = {}  # device: the bytes that were counted last


def pressed():
    """Whether memory is short: then gradients get homes. It stays so."""
    global _pressed
    _pressed = _pressed or bool(core.homes_on_host()) or any(core.device_short(device, 0) for device in homes.devices())
    while _pressed and when_pressed:
        when_pressed.pop()()
    return _pressed


def waiting():
    """Whether a parameter may have to come home: it has none, and memory is short."""
    return pressed() and any(not address and p not in _held for p, address in _known.items())


def serves(p):
    """Whether a parameter's data is this package's business."""
    return _installed and p.is_cuda


def step_ended():
    """An optimizer step is over."""
    if not homes.devices():
        return
    core.device_step_end()
    pressed()
    shortage.tell(lambda: list(_known))
    if core.options.debug:
        for device in homes.devices():
            core.device_check(device)


def look(parameters, in_step=False):
    """Gives a home to those parameters that have none, on devices whose memory is short, and takes up those that have another one than at
    the last look. in_step: this stream reads them next, and they are no news; else others may still write to them."""
    here = [p for p in parameters if homes.can_have(p)]
    if not here:
        return
    tiers = homes.tiers(here)
    short = _short_devices([p for p, tier in zip(here, tiers) if tier == core.HOME_NONE], not in_step)
    for p, tier in zip(here, tiers):
        if tier != core.HOME_NONE and _known.get(p) == p.data_ptr():
            continue
        if p not in _known and p.requires_grad and p.is_leaf:
            gradient_sums.watch(p, _gradient_accumulated)
        if tier == core.HOME_NONE and not (p.device.index in short and _come_home(p, in_step)):
            _known[p] = 0
            continue
        core.storage_add(p.device.index, p.data_ptr(), tensors.extent(p))
        _known[p] = p.data_ptr()
    for device in short:
        _count_held(device)


def _short_devices(outside, come):
    """Of these parameters without homes. come: their gradients and states are still to be made."""
    found = set()
    for device in {p.device.index for p in outside}:
        if homes.available(device):
            size = sum(tensors.extent(p) for p in outside if p.device.index == device) if come else 0
            if core.device_short(device, size):
                found.add(device)
    return found


def forget(*some):
    """These tensors get other contents (torch.utils.swap_tensors): the next look finds them anew."""
    for t in some:
        _known.pop(t, None)


def adopt_masters(parameters):
    """CASTOR_PRECISION: parameters on devices become 16 bits, with masters in homes of states. Returns those that have masters from now on."""
    return masters.adopt_on_devices([p for p in parameters if serves(p)], _narrow)


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
    if homes.move(p, homes.PARAMETER, drain=not in_step):
        _held.pop(p, None)
        return True
    _held[p] = tensors.extent(p)
    return False


def _count_held(device):
    """What cannot move is of the device's budget."""
    held = sum(size for p, size in _held.items() if p.device.index == device)
    if held == _held_told.get(device, 0):
        return
    core.device_outside(device, held)
    if device not in _held_told:
        core.log(1, f"device {device}: {held / 2**20:.1f} MiB of parameters stay there, since other code has their addresses or owns their "
                    "memory, or a graph was captured before they had homes; they count as model data of the device".encode())
    _held_told[device] = held


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
        place = placing(fn, device) if placing is not None else None
        try:
            with homes.born(homes.PARAMETER, device) if place is None else contextlib.nullcontext():
                result = apply(self, place or fn, recurse)
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


_loads = weakref.WeakKeyDictionary()  # optimizer: how often it has loaded states


def loads_of(optimizer):
    return _loads.get(optimizer, 0)


def _counted(load_state_dict):
    in_homes = _born_on_current(homes.STATE)(load_state_dict)

    @functools.wraps(load_state_dict)
    def run(self, *args, **kwargs):
        _loads[self] = loads_of(self) + 1
        return in_homes(self, *args, **kwargs)

    return run


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


def _gives_homes_back(empty_cache):
    @functools.wraps(empty_cache)
    def run():
        if store.active() and not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
            for free in before_emptying:
                free()
            homes.give_back()
        pools.empty_cache(empty_cache)

    return run


def _say_at_end():
    if not store.active():
        return
    for device in homes.devices():
        found = homes.statistics(device)
        peak, back = sum(kind[core.HOME_HOST] for kind in found.peak_bytes), found.flips[core.HOME_DEVICE]
        core.log(2, f"device {device} had at most {peak} bytes of model data at a time on the host; {back} times some came back, and "
                 f"{found.updates} steps of a parameter were done there".encode())


def install():
    global _installed
    _installed = True
    atexit.register(shortage.tell, lambda: list(_known), last=True)  # of passes without a step
    if core.options.debug:
        atexit.register(_say_at_end)
    traced.steps.pytorchs = True
    pools.install()
    gradient_sums.install()
    addresses.install()
    patching.replace("torch.cuda.empty_cache", _gives_homes_back)
    patching.replace("torch.nn.Module._apply", _apply_in_homes)
    patching.replace("torch.load", _born_on_current(homes.PARAMETER))
    patching.replace("torch.optim.Optimizer.load_state_dict", _counted)
    patching.replace("torch.nn.Parameter.__deepcopy__", _copied_in_homes)
    patching.replace("torch.Tensor.__deepcopy__", _copied_in_homes)
    patching.replace("torch.cuda.CUDAGraph.capture_begin", _keeps_addresses)
    patching.replace("torch.optim.Optimizer.__init__", _look_after)
    patching.replace("torch.optim.Optimizer.add_param_group", _look_after)
