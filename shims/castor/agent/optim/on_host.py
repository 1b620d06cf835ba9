"""Optimizer steps by the processors, of parameters whose gradients and states are on the host (CASTOR_DEVICE_STEP).

The script's own optimizer runs as ever; in place of PyTorch's function for a device the kernels for the CPU step its tensors where they lie,
with the bits of that function (kernels.py), and behind the script's back (interpose/device/updates.h). A parameter that is on the
device itself lends its values: they go to the host before, and come back after. With CASTOR_PRECISION masters are stepped. One whose memory is to be read alone is stepped where the
node's other ranks read it (step_parts.targeted)."""
import ctypes
import functools
import itertools

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from .. import core
from ..common import tensors
from ..device import homes, step_common, step_parts
from ..precision import masters
from . import kernels

_copies = WeakTensorKeyDictionary()  # parameter on the device: its copy on the host


def step(optimizer, pairs, run):
    """Has the processors step what they can. Returns these pairs, and what `run` has returned."""
    done, result = [], None
    if core.options.device_step == "parts" or type(optimizer) not in step_common.KNOWN or torch.cuda.is_current_stream_capturing():
        return done, result
    if step_common.share_memory(optimizer, pairs):
        return done, result
    able = _able(optimizer, pairs)
    for group in optimizer.param_groups:
        mine = {id(p) for p in group["params"]}
        for index in sorted({p.device.index for p, _ in able if id(p) in mine}):
            some = [pair for pair in able if id(pair[0]) in mine and pair[0].device.index == index]
            try:
                if _reaches(index):
                    result = _step(index, some, run)
                    done += some
            except kernels.NotOnHost as why:
                _tell(f"{type(optimizer).__name__} of {torch.device('cuda', index)} steps in parts: {why}")
    return done, result


@functools.cache
def _reaches(index):
    try:
        core.device_updates(index)
    except core.Error as error:
        _tell(f"optimizers step in parts: {error}")
        return False
    return True


@functools.cache
def _tell(line):
    """Only who asked for it wants to know."""
    if core.options.device_step == "host":
        core.log(1, f"CASTOR_DEVICE_STEP=host: {line}".encode())


def _able(optimizer, pairs):
    """Those of which everything but the parameter is in homes on the host. States that are yet to be made come to be in parts."""
    moved = {id(p) for group in optimizer.param_groups if group.get("momentum", 1) for p in group["params"]}
    able = [(p, grad) for p, grad in pairs if p.dim() and (id(p) not in moved or p in optimizer.state)]
    some = [step_common.tensors_of(optimizer, p, grad) for p, grad in able]
    found = iter(homes.tiers([t for each in some for t in each[1:]]))
    return [pair for pair, each in zip(able, some) if all([next(found) == core.HOME_HOST for _ in each[1:]]) and _are_alike(pair[0], each)]


def _are_alike(p, some):
    """`some`: of step_common.tensors_of. With a master the parameter has 16 bits, and its gradient may have."""
    wide, narrow = masters.of(p), (torch.float32,)
    if wide is not None:
        if p.dtype is not masters.dtype or wide.written() or len(some) < 3 or some[2] is not wide.tensor:
            return False
        narrow = p.dtype, torch.float32
    types = narrow[:1], narrow
    return (tensors.is_dense(p) and all(t.shape == p.shape and t.stride() == p.stride() for t in some)
            and all(t.dtype in allowed for t, allowed in itertools.zip_longest(some, types, fillvalue=(torch.float32,))))


def _step(index, pairs, run):
    """Those of one group on one device; first the ones for which the device waits."""
    device = step_common.device(index)
    tiers = homes.tiers([p for p, _ in pairs])
    lent = [pair for pair, tier in zip(pairs, tiers) if tier != core.HOME_HOST]
    at_home = [pair for pair, tier in zip(pairs, tiers) if tier == core.HOME_HOST]
    own = {p.data_ptr(): p.data for p, _ in at_home}
    device.begin()
    try:
        result = _lend(device, lent, run) if lent else None
        if at_home:
            result = _run(device, at_home, lambda address: step_parts.target(own[address]), run)
    finally:
        device.end()
    return result


def _run(device, pairs, stepped_for, run):
    wide = [pair for pair in pairs if masters.of(pair[0]) is not None]
    working = {masters.of(p).tensor.data_ptr(): (p.data, grad) for p, grad in wide}
    float_pairs = [pair for pair in pairs if masters.of(pair[0]) is None]
    with step_common.shown(float_pairs), masters.exchanged(wide), kernels.on_host(functools.partial(_enqueue, device, stepped_for), working):
        return run()


def _lend(device, pairs, run):
    copies = [_copy_of(p) for p, _ in pairs]
    with torch.no_grad(), torch.cuda.stream(device.comes):
        for (p, _), copy in zip(pairs, copies):
            copy.copy_(p.data, non_blocking=True)
        size = sum(copy.nbytes for copy in copies)
        device.count(core.HOME_HOST, size, device.comes)
    lent = {p.data_ptr(): copy for (p, _), copy in zip(pairs, copies)}
    result = _run(device, pairs, lent.pop, run)
    with torch.no_grad(), torch.cuda.stream(device.goes):
        core.device_updates_wait(device.index, device.goes.cuda_stream)
        for p, _ in pairs:
            if p.data_ptr() not in lent:  # those that were stepped
                p.data.copy_(_copies[p], non_blocking=True)
        device.count(core.HOME_DEVICE, size, device.goes)
    return result


def _copy_of(p):
    copy = _copies.get(p)
    if copy is None or copy.dtype is not p.dtype or copy.shape != p.shape or copy.stride() != p.stride():
        _copies[p] = copy = torch.empty_strided(p.size(), p.stride(), dtype=p.dtype, device="cpu", pin_memory=True)
    return copy


def _enqueue(device, stepped_for, name, numbers, ranges, late=None, late_numbers=None):
    """In the order in which the next pass comes to the parameters. stepped_for(a parameter's address): the tensor that is stepped.
    late_numbers(order): of castor_late, a row for each range."""
    count, comes = len(ranges), device.comes
    next_uses = (ctypes.c_uint64 * count)()
    core.slots_next_uses(device.index, (ctypes.c_uint64 * count)(*(r.param for r in ranges)), count, next_uses)
    for r in ranges:
        r.param = stepped_for(r.param).data_ptr()
    order = sorted(range(count), key=next_uses.__getitem__)
    ranges = (core.StepRange * count)(*(ranges[i] for i in order))
    if name == "sgd":
        core.device_sgd(device.index, comes.cuda_stream, ctypes.byref(numbers), ranges, count, torch.get_num_threads())
        return
    kept = None
    if late is not None:
        comes.wait_stream(torch.cuda.current_stream(device.index))
        with torch.cuda.stream(comes):
            kept = late_numbers(order)
        late.numbers = kept.data_ptr()
    core.device_adam(device.index, comes.cuda_stream, ctypes.byref(numbers), None if late is None else ctypes.byref(late), ranges, count,
                     torch.get_num_threads())


def install():
    step_parts.by_processors = step
