"""Optimizer steps by the processors, of parameters whose states are on the host (CASTOR_DEVICE_STEP).

The script's own optimizer runs as ever; in place of PyTorch's function for a device the kernels for the CPU step its tensors where they lie,
with the bits of that function (kernels.py), and behind the script's back (interpose/device/updates.h). What is on the device itself is
lent: parameters and gradients go to the host before, and parameters come back after. With CASTOR_PRECISION masters are stepped. A
parameter whose memory can only be read is stepped where the node's other ranks read it (step_parts.targeted)."""
import collections
import ctypes
import functools
import itertools

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from .. import core
from ..common import tensors
from ..device import homes, step_common, step_parts
from ..device_ranks import pages
from ..precision import masters
from . import kernels

# By parameter: what was lent, of itself and of its gradient. Memory of the host, which stays.
_parameters, _gradients = WeakTensorKeyDictionary(), WeakTensorKeyDictionary()
_followed = WeakTensorKeyDictionary()  # parameters of whose states some were on the host


def step(optimizer, pairs, run):
    """Has the processors step what they can. Returns these pairs, and what `run` has returned."""
    done, result = [], None
    if core.options.device_step == "parts" or type(optimizer) not in step_common.KNOWN or torch.cuda.is_current_stream_capturing():
        return done, result
    if step_common.share_memory(optimizer, pairs):
        return done, result
    able = _able(optimizer, pairs)
    for index in {p.device.index for p, _ in able if p in _gradients}:  # the last step may still read what it was lent
        core.device_updates_wait(index, step_common.device(index).comes.cuda_stream)
    for group in optimizer.param_groups:
        mine = {id(p) for p in group["params"]}
        for index in sorted({p.device.index for p, _ in able if id(p) in mine}):
            some = [pair for pair in able if id(pair[0]) in mine and pair[0].device.index == index]
            why = step_common.why_not_reached(index)
            if why:
                _tell(f"optimizers step in parts: {why}")
                continue
            try:
                result = _step(index, some, run, done)
            except kernels.NotOnHost as why:
                _tell(f"{type(optimizer).__name__} of {torch.device('cuda', index)} steps in parts: {why}")
    return done, result


@functools.cache
def _tell(line):
    """Only who asked for it wants to know."""
    if core.options.device_step == "host":
        core.log(1, f"CASTOR_DEVICE_STEP=host: {line}".encode())


def _able(optimizer, pairs):
    """Those whose states are on the host, and whose step carries no more over the link there than in parts. States that are yet to be made come
    to be in parts."""
    moved = {id(p) for group in optimizer.param_groups if group.get("momentum", 1) for p in group["params"]}
    able = [(p, grad) for p, grad in pairs if p.dim() and (id(p) not in moved or optimizer.state.get(p))]
    some = [step_common.tensors_of(optimizer, p, grad) for p, grad in able]
    where = _on_host(some)
    if _follow([p for p, _ in able], [each[2:] for each in some], [there[2:] for there in where]):
        where = _on_host(some)
    return [pair for pair, each, there in zip(able, some, where) if _pays(each, there) and _are_alike(pair[0], each)]


def _on_host(some):
    """For each list of tensors, whether each of them is there."""
    tiers = iter(homes.tiers([t for each in some for t in each]))
    return [[next(tiers) == core.HOME_HOST for _ in each] for each in some]


def _follow(parameters, states, where):
    """Where one of a parameter's states is on the host, the others on the device follow, a master among them, once: unless their homes are mostly of
    others. where: of _on_host. Returns whether some may have moved."""
    divided = [(p, [t for t, is_there in zip(each, there) if not is_there]) for p, each, there in zip(parameters, states, where)
               if any(there) and not all(there) and p not in _followed]
    _followed.update((p, True) for p, _ in divided)
    left = [t for _, each in divided for t in each]
    sizes, wanted = {}, collections.Counter()
    for t, (start, size) in zip(left, pages.homes_of(left)):
        sizes[start] = size
        wanted[start] += t.nbytes
    starts = [start for start, size in sizes.items() if start and 2 * wanted[start] >= size]
    if starts:
        try:
            core.homes_move(pages.numbers(starts), len(starts), core.HOME_HOST)
        except core.Error as error:
            core.log(3, f"states stay on the device: {error}".encode())
    return bool(starts)


def _pays(some, there):
    """`some`: of step_common.tensors_of; there: whether each is on the host. What the processors step and is not there is lent: a parameter comes
    back. In parts all that is there comes, and leaves again but for gradients."""
    parameter, gradient, *states = (t.nbytes for t in some)
    lent = 2 * parameter * (not there[0]) + gradient * (not there[1])
    return all(there[2:]) and lent <= 2 * parameter * there[0] + gradient * there[1] + 2 * sum(states)


def _are_alike(p, some):
    """`some`: of step_common.tensors_of. With a master the parameter has 16 bits, and its gradient may have."""
    wide, narrow = masters.of(p), (torch.float32,)
    if wide is not None:
        if p.dtype is not masters.dtype or wide.written() or len(some) < 3 or some[2] is not wide.tensor:
            return False
        narrow = p.dtype, torch.float32
    types = narrow[:1], narrow
    return (tensors.is_dense(p) and all(t.shape == p.shape and t.stride() == p.stride() and kernels.is_plain(t) for t in some)
            and all(t.dtype in allowed for t, allowed in itertools.zip_longest(some, types, fillvalue=(torch.float32,))))


def _step(index, pairs, run, done):
    """Those of one group on one device; first the ones for which the device waits. What is stepped is added to `done`."""
    device = step_common.device(index)
    there = [tier == core.HOME_HOST for tier in homes.tiers([t for pair in pairs for t in pair])]
    lent = [pair for pair, is_there in zip(pairs, there[::2]) if not is_there]
    at_home = [pair for pair, is_there in zip(pairs, there[::2]) if is_there]
    own = {p.data_ptr(): p.data for p, _ in at_home}
    device.begin()
    try:
        gradients = _lend(device, _gradients, [pair for pair, is_there in zip(pairs, there[1::2]) if not is_there])
        result = _step_lent(device, lent, gradients, run) if lent else None
        done += lent
        if at_home:
            result = _run(device, at_home, gradients, lambda address: step_parts.target(own[address]), run)
            done += at_home
    finally:
        device.end()
    return result


def _run(device, pairs, gradients, stepped_for, run):
    """gradients: those that were lent, by parameter."""
    wide = [pair for pair in pairs if masters.of(pair[0]) is not None]
    plain = [pair for pair in pairs if masters.of(pair[0]) is None]
    working = {masters.of(p).tensor.data_ptr(): p.data for p, _ in wide}
    taken = {masters.of(p).tensor.data_ptr(): gradients.get(id(p), grad) for p, grad in wide}
    taken.update((p.data_ptr(), gradients[id(p)]) for p, _ in plain if id(p) in gradients)
    with step_common.shown(plain), masters.exchanged(wide), kernels.on_host(functools.partial(_enqueue, device, stepped_for), working, taken):
        return run()


def _step_lent(device, pairs, gradients, run):
    copies = _lend(device, _parameters, [(p, p.data) for p, _ in pairs])
    lent = {p.data_ptr(): copies[id(p)] for p, _ in pairs}
    result = _run(device, pairs, gradients, lent.pop, run)
    with torch.no_grad(), torch.cuda.stream(device.goes):
        core.device_updates_wait(device.index, device.goes.cuda_stream)
        stepped = [p for p, _ in pairs if p.data_ptr() not in lent]
        for p in stepped:
            p.data.copy_(copies[id(p)], non_blocking=True)
        device.count(core.HOME_DEVICE, sum(p.nbytes for p in stepped), device.goes)
    return result


def _lend(device, kept, some):
    """some: (parameter, a tensor of it) each. Copies on the host, by the parameter's id."""
    copies = {}
    with torch.no_grad(), torch.cuda.stream(device.comes):
        for p, t in some:
            copy = kept.get(p)
            if copy is None or copy.dtype is not t.dtype or copy.shape != t.shape or copy.stride() != t.stride():
                try:
                    kept[p] = copy = torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device="cpu", pin_memory=True)
                except RuntimeError as error:
                    raise kernels.NotOnHost(f"the host has no pinned memory for what is on the device: {error}") from error
            copies[id(p)] = copy.copy_(t, non_blocking=True)
        device.count(core.HOME_HOST, sum(t.nbytes for _, t in some), device.comes)
    return copies


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
