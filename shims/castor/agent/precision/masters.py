"""Parameters and gradients of 16 bits, with the float values behind them (CASTOR_PRECISION; docs/precision.md).

narrow  a parameter or buffer that the script computes with, after it became 16 bits
wide    the float values behind it. If an optimizer steps the parameter, they are the master: the owner keeps it once on the
        node, and every rank sees it. Otherwise (buffers, frozen parameters) each rank keeps them. On a device they have homes
        of optimizer states, which leave it first; where ranks own them they are read when they are looked at (device_ranks/wides.py)

The wide values count as long as the narrow ones are their rounding. Narrow elements that the script has written count
instead. If it has written the wide values, which state_dict() shows, all of those count."""
import contextlib
import gc
import weakref
from ctypes import byref, c_uint8, c_uint64, c_void_p

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from .. import core
from ..common import store, tensors
from ..common.places import Place
from . import casts, loss_scale

DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
FLOATS = "_castor_floats"  # in a module: the names of buffers that were float
BROADCAST_BYTES = 16 << 20

dtype = None  # the working type; None: every tensor keeps its own
_buffers = {}  # (id(module), name): weak references to the module and the buffer, of 16 bits, which the model has not written
_on_devices = WeakTensorKeyDictionary()  # the parameters on devices that optimizers step
at_adoption = []  # callbacks, called before parameters become 16 bits
_wides = {}  # id(tensor): Wide; whose weak reference says whether the id is still that tensor's


class Wide:
    """The float values behind `narrow`. In the store `tensor` is this rank's view, and the owner writes the `alias`. tensor None: another rank
    has them."""

    def __init__(self, narrow, tensor, alias=None, place=None):
        key = id(narrow)
        self.narrow = weakref.ref(narrow, tensors.while_python_runs(lambda: _wides.pop(key, None)))
        self.tensor, self.alias, self.place = tensor, alias, place
        self.narrow_version = narrow._version
        self.seen()
        _wides[key] = self

    def written(self):
        """The script has written the wide values (what state_dict() gave it) since they were looked at."""
        return self.tensor is not None and self.tensor._version != self.version

    def rewritten(self):
        """The model has written the narrow values; perhaps the same ones, since the change was too small."""
        return self.narrow()._version != self.narrow_version and not self.written()

    def narrow_seen(self):
        self.narrow_version = self.narrow()._version

    def seen(self):
        self.version = None if self.tensor is None else self.tensor._version

    def load(self, values):
        """The script gives it other values."""
        narrow = self.narrow()
        self.tensor.copy_(values)
        narrow.data.copy_(self.tensor)
        self.seen()
        self.narrow_seen()

    def shown(self):
        """The wide values, after settle()."""
        narrow = self.narrow()
        with torch.no_grad():
            settle([(self, narrow.data, self.tensor)])
        return self.tensor.detach()


def of(t):
    wide = _wides.get(id(t))
    return wide if wide is not None and wide.narrow() is t else None


def has_any():
    return bool(_wides)


def gradient_dtype(p):
    """The type of p.grad."""
    return torch.float32 if loss_scale.active() and of(p) is not None else p.dtype


def settle(pairs):
    """Updates narrow or wide values from the other ones, if the script has written those. `pairs`: (Wide, its narrow values, its
    wide values), or aliases of these."""
    alike = []
    for wide, narrow, values in pairs:
        if wide.written():
            narrow.copy_(values)
        elif _check(narrow, values) and narrow.is_cuda:
            _take_up_on_device(narrow, values)
        elif narrow.stride() == values.stride() and tensors.is_dense(values):
            alike.append((narrow, values))
        else:  # the script has chosen another layout
            copy = values.contiguous()
            if any(_take_up([(narrow.contiguous(), copy)])):
                values.copy_(copy)
    torch.autograd.graph.increment_version([values for (_, values), changed in zip(alike, _take_up(alike)) if changed])
    for wide, _, _ in pairs:
        wide.seen()


def _take_up(pairs):
    """Copies narrow values that were written to the wide ones. Returns a flag for each pair: whether it changed."""
    if not pairs:
        return ()  # always so without CASTOR_PRECISION: there is no type then
    narrow, wide = (core.pointers([t.data_ptr() for t in each]) for each in zip(*pairs))
    numels, changed = (c_uint64 * len(pairs))(*[values.numel() for _, values in pairs]), (c_uint8 * len(pairs))()
    core.settle(tensors.DTYPES[dtype], wide, narrow, numels, len(pairs), changed)
    return changed


def _take_up_on_device(narrow, values):
    """The same without a wait, bit by bit: a script may write another zero."""
    written = narrow.view(torch.int16) != values.to(narrow.dtype).view(torch.int16)
    torch.where(written, narrow, values, out=values)


def _check(narrow, values):
    if narrow.dtype is dtype and narrow.shape == values.shape and narrow.device == values.device:
        return True
    raise core.Error(f"castor: the script has made a parameter or buffer {str(narrow.dtype)[6:]} of shape {tuple(narrow.shape)} on "
                     f"{narrow.device}, and Castor keeps float values of shape {tuple(values.shape)} on {values.device} behind it: let "
                     "CASTOR_PRECISION choose the type, keep the shape, and move a model before its optimizer is built")


def settle_written(module):
    """Before a module is called, or (None) the whole model: takes up values that the script wrote through state_dict()."""
    wides = list(_wides.values()) if module is None else [
        of(t) for t in (*module._parameters.values(), *module._buffers.values()) if t is not None]
    for wide in wides:
        if wide is not None and wide.written():
            wide.shown()


def serves_one_process(parameters):
    """Whether Castor has something to do for one process, or one rank, which shares with nobody."""
    return dtype is not None or core.places(sum(p.nbytes for p in parameters))


# ---- adoption


def adopt(group, parameters):
    """store.adopt, after which the parameters are of 16 bits, and their masters lie in the store. On every rank together."""
    if dtype is None:
        return store.adopt(group, parameters)
    fresh = store.fresh_of(group, parameters)
    if not fresh:
        return store.adopt(group, parameters)
    for callback in at_adoption:
        callback()
    if group.across is not None:
        raise core.Error("castor: CASTOR_PRECISION works on one node: leave it at fp32 on several")
    with torch.no_grad():
        stepped = _lower(group, fresh)
        entries = store.adopt(group, parameters, float_sums=loss_scale.active())
        _place_masters(group, stepped)
    return entries


def adopt_on_devices(parameters, narrow):
    """The same for parameters on devices, which PyTorch's allocator has, and their masters. `narrow`: as _narrow. Returns the parameters that
    have masters from now on."""
    fresh = [p for p in parameters if p.requires_grad and p not in _on_devices]
    if dtype is None or not fresh:
        return []
    for callback in at_adoption:
        callback()
    with torch.no_grad():
        stepped = [Wide(p, values) for p, values in _lower(None, fresh, narrow)]
    _on_devices.update((p, True) for p in fresh)
    return [wide.narrow() for wide in stepped]


def on_devices(optimizer):
    """Whether it steps masters on devices."""
    return bool(_on_devices) and any(p in _on_devices for p in store.parameters_of(optimizer))


def _narrow(lowered):
    """Makes tensors 16 bits. `lowered`: (tensor, its float values) each."""
    for t, values in lowered:
        t.data = values.to(dtype)


def _lower(group, parameters, narrow=_narrow):
    """Makes the working copies; `group`: of ranks, None on devices. Returns (parameter, its float values) of those that are to be stepped."""
    if all(p.dtype in casts.HALF and of(p) is None for p in parameters):
        raise core.Error(f"castor: the model's parameters are {str(parameters[0].dtype)[6:]} already: leave CASTOR_PRECISION at "
                         "fp32, or build the model in float (transformers: from_pretrained(..., dtype=torch.float32)), of which "
                         "Castor then keeps the master (a copy of a model before that is wrapped or its optimizer built)")
    of_modules, others, buffers = casts.prepare(parameters)
    ours = {id(p) for p in parameters}
    places = {}
    stepped = []
    is_first = group is None or group.rank == 0
    for p in parameters:
        if id(p) not in of_modules or p.dtype is not torch.float32 and of(p) is None:
            continue
        why = _why_not(p, places)
        if why:
            raise core.Error(f"castor: a parameter of shape {tuple(p.shape)} cannot become {str(dtype)[6:]}: {why}. Leave "
                             "CASTOR_PRECISION at fp32 for this script")
        values = p.data if of(p) is None else of(p).shown()  # it was frozen until now
        if group is not None:
            _of_rank_0(group, values)
        stepped.append((p, values))
    # Tensors without dimensions stay float: they make nothing else float, and counters are such.
    kept = [(t, t.data) for t in others if id(t) not in ours and t.dim() and t.dtype is torch.float32 and of(t) is None]
    narrow(stepped + kept)
    for t, wide in kept:
        Wide(t, wide)
    for module, name in buffers:
        t = module._buffers[name]
        if t is not None and of(t) is not None:
            module.__dict__.setdefault(FLOATS, set()).add(name)
            if is_first:
                _buffers.setdefault((id(module), name), (weakref.ref(module), weakref.ref(t)))
    if loss_scale.active():
        for p, _ in stepped:
            p.grad_dtype = torch.float32
        for p in parameters:
            loss_scale.hook(p)
    if not stepped and is_first:
        core.log(1, f"CASTOR_PRECISION={core.options.precision}: none of the {len(parameters)} parameters that "
                    "are trained is a float parameter of a module: they stay as they are".encode())
    return stepped


def _why_not(p, places):
    if of(p) is not None and of(p).tensor is not None and of(p).tensor.device != p.device:
        return f"it was moved to {p.device} after its optimizer was built: move the model before"
    if places.setdefault(p.data_ptr(), p) is not p and p.numel():
        return "another parameter has the same memory"
    if p.device.type == "cpu" and p.is_shared():
        return "its memory is shared with other processes"
    if type(p) is not torch.nn.Parameter:
        return f"it is a {type(p).__name__}"
    if not tensors.owns_whole_storage(p) and tensors.storage_users(p) > 1:
        return "it is part of a tensor that others look at"
    if _looked_at(p if of(p) is None else of(p).tensor):
        return ("the script holds another tensor with the same memory (of state_dict(), .data or detach()), which would not follow: "
                "take it after the model is wrapped and its optimizer built, or clone it")
    return tensors.why_unsupported(p, p.device.type)


def _looked_at(t):
    if tensors.storage_users(t) <= 1:
        return False
    gc.collect()  # tensors that cannot be reached any more do not count
    return tensors.storage_users(t) > 1


def _of_rank_0(group, values):
    size = values.numel() * values.element_size()
    for begin in range(0, size, BROADCAST_BYTES):
        core.broadcast(group.handle, values.data_ptr() + begin, min(size - begin, BROADCAST_BYTES), b"the parameters")


def _place_masters(group, stepped):
    """Puts masters of shared parameters into the owners' state chunks. Of the rest each rank has its own."""
    shared, offsets, aliases = [], [], []
    for p, values in stepped:
        entry = store.entry_of(p)
        if not entry.shared:
            Wide(p, values)
            continue
        shared.append((p, values))
        offsets.append(0.0)
        aliases.append(None)
        if entry.mine:
            offset, address = c_uint64(), c_void_p()
            core.state_allocate(entry.handle, values.nbytes, byref(offset), byref(address))
            aliases[-1] = tensors.tensor_at(address.value, values)
            aliases[-1].copy_(values)
            offsets[-1] = float(offset.value)
    every = group.gather(offsets or [0.0], "the masters of the parameters")
    for index, (p, values) in enumerate(shared):
        offset = int(every[store.entry_of(p).owner][index])
        place = Place((offset, tuple(values.shape), values.stride(), values.dtype))
        place.make_view(group, store.entry_of(p))
        Wide(p, place.view, aliases[index], place)


# ---- steps


def check_optimizer(optimizer, closure):
    """Before an optimizer's step: refuses optimizers that cannot step masters."""
    if dtype is None:
        return
    parameters = store.parameters_of(optimizer)
    if on_devices(optimizer):
        _check_on_devices(parameters)
    else:
        away = next((p for p in parameters if p.device.type != "cpu" and p.dtype is torch.float32), None)
        if away is not None:
            raise core.Error(f"castor: CASTOR_PRECISION={core.options.precision} serves models on {away.device.type} devices that DistributedDataParallel "
                             "wraps, or scripts of one process: leave it at fp32, and use torch.autocast, or a model of 16-bit parameters, there")
    if not store.groups() and any(p.dtype is torch.float32 and p not in _on_devices for p in parameters if p.requires_grad):
        raise core.Error(f"castor: CASTOR_PRECISION={core.options.precision} works on models that "
                         "DistributedDataParallel wraps, and on scripts without a process group: wrap this one, or leave it at fp32")
    if not any(of(p) is not None for p in parameters):
        return
    late = next((p for p in parameters if of(p) is not None and p not in _on_devices and store.entry_of(p) is None and p.grad is not None), None)
    if late is not None:
        raise core.Error(f"castor: a parameter of shape {tuple(late.shape)} was frozen when CASTOR_PRECISION={core.options.precision} made it 16 "
                         "bits, and is stepped now: unfreeze it before the model is wrapped and its optimizer built, or give it to "
                         "add_param_group()")
    name = type(optimizer).__name__
    if closure is not None:
        raise core.Error(f"castor: {name}.step() is called with a closure, which CASTOR_PRECISION cannot work with: call "
                         "backward() before step(), or leave CASTOR_PRECISION at fp32")
    if not getattr(type(optimizer).step, "castor_separable", False):
        raise core.Error(f"castor: CASTOR_PRECISION works with the optimizers of torch.optim that step each parameter on its "
                         f"own, and {name} is none of them: name it in CASTOR_SEPARABLE if it does, or leave "
                         "CASTOR_PRECISION at fp32")
    _tell_of_buffers()


def _check_on_devices(parameters):
    if loss_scale.in_backward():  # autograd has a thread for each device
        refuse("an optimizer steps inside a backward pass")
    if any(store.entry_of(p) is not None for p in parameters):
        refuse("an optimizer steps parameters on the CPU and on a device, which takes one optimizer each")
    if torch.cuda.is_current_stream_capturing():
        refuse("an optimizer steps while a CUDA graph is captured, whose replays would not see what the script writes")


def _tell_of_buffers():
    """Warns of buffers that the model itself writes (running means, codebooks): small changes are lost in 16 bits. They stay so,
    since a model must compute in one type."""
    for key, (module, first) in list(_buffers.items()):
        now = module()._buffers.get(key[1]) if module() is not None else None
        wide = None if now is None else of(now)
        if wide is not None and now is first() and not wide.rewritten():
            continue
        del _buffers[key]
        if now is not None and now.dtype is dtype:
            name = core.options.precision
            core.log(1, f"CASTOR_PRECISION={name}: the model writes its buffer {key[1]!r} in {name}, where changes below a "
                        f"{'256th' if name == 'bf16' else '2048th'} of a value are lost: if it is a mean over many steps, leave "
                        "CASTOR_PRECISION at fp32".encode())


def refuse(reason):
    raise core.Error(f"castor: CASTOR_PRECISION={core.options.precision} cannot be applied: {reason}. Leave it at "
                     "fp32 for this script")


def refuse_local(parameters):
    if any(of(p) is not None for p in parameters):
        raise core.Error("castor: an optimizer steps with gradients that were not synchronized (no_sync), where each rank would "
                         "need masters of its own: leave CASTOR_PRECISION at fp32 for this script")


def refuse_other_values(parameters):
    if any(of(p) is not None for p in parameters):
        raise core.Error("castor: the script has given parameters other values on some ranks than on others, and one rank keeps the master of each: leave "
                         "CASTOR_PRECISION at fp32 for this script")


def refuse_leaving(p):
    if of(p) is not None:
        raise core.Error("castor: the script gives a parameter, or an optimizer state of it, memory that something else can "
                         "reach, and Castor keeps its master: leave CASTOR_PRECISION at fp32 for this script")


class MastersShown:
    """During a step the optimizer sees the masters, and gradients of their type."""

    def __init__(self, optimizer, seen):
        """`seen`: (parameter, the narrow tensor that its owner writes, its gradient) each."""
        wides = [of(p) for p, _, _ in seen]
        _push([w for w in wides if w.alias is not None])
        targets = [wide.tensor if wide.alias is None else wide.alias for wide in wides]
        for (p, _, _), target in zip(seen, targets):
            _check(p, target)
        settle([(wide, narrow, target) for wide, (_, narrow, _), target in zip(wides, seen, targets)])
        self.seen = []
        for (p, narrow, grad), wide, target in zip(seen, wides, targets):
            self.seen.append((wide, p, p.data, p.grad, narrow, target))
            p.grad = None
            p.data = target
            p.grad = grad.float()
            _widen_states(optimizer, p)

    def leave(self):
        for wide, p, data, grad, narrow, target in self.seen:
            p.grad = None
            if p.data_ptr() != target.data_ptr():  # the optimizer put another tensor there
                target.copy_(p.data)
            p.data = data
            p.grad = grad
            narrow.copy_(target)
            wide.seen()
        self.seen = []


@contextlib.contextmanager
@torch.no_grad()
def shown(optimizer, pairs):
    """The same for (parameter, gradient) pairs on devices."""
    showing = MastersShown(optimizer, [(p, p.data, grad) for p, grad in pairs if of(p) is not None])
    try:
        yield
    finally:
        showing.leave()


@contextlib.contextmanager
def exchanged(pairs):
    """The optimizer sees the masters of these (parameter, gradient) pairs on devices, and steps them where it sees them; in place of a gradient of
    16 bits it sees the master again."""
    seen = [(p, p.data, of(p)) for p, _ in pairs]
    for (p, _, wide), (_, grad) in zip(seen, pairs):
        p.grad = None
        p.data = wide.tensor
        p.grad = grad if grad.dtype is wide.tensor.dtype else wide.tensor.detach()
    try:
        yield
    finally:
        for p, narrow, wide in seen:
            p.grad = None
            p.data = narrow
            wide.seen()


def _push(wides):
    """Copies the edits of the owner's script in its views to the store."""
    core.views_push(core.pointers([w.place.view_address for w in wides]), core.pointers([w.alias.data_ptr() for w in wides]),
                    (c_uint64 * len(wides))(*[w.place.nbytes for w in wides]), len(wides))


def _widen_states(optimizer, p):
    """Widens states that were made in the parameter's type before its first step. They must be zeros still."""
    state = optimizer.state.get(p)
    for key, value in state.items() if state else ():
        if isinstance(value, torch.Tensor) and value.dtype is dtype and value.shape == p.shape:
            if value.any():
                raise core.Error(f"castor: {type(optimizer).__name__} has made its state {key!r} of {str(dtype)[6:]} numbers before its "
                                 "first step: build it before the model is wrapped, or leave CASTOR_PRECISION at fp32")
            state[key] = value.float()


def published(parameters):
    """Their owners have stepped them: every rank sees the masters."""
    wides = [w for w in map(of, parameters) if w is not None and w.place is not None]
    core.views_drop(core.pointers([w.place.view_address for w in wides]),
                    (c_uint64 * len(wides))(*[w.place.nbytes for w in wides]), len(wides))
    for wide in wides:
        wide.seen()


def install():
    """From here on models become what CASTOR_PRECISION says. Returns whether that is 16 bits."""
    global dtype
    dtype = DTYPES[core.options.precision]
    if dtype is not None:
        casts.install(dtype, settle_written)
    return dtype is not None
