"""The gradients of a backward pass: averaged over the ranks through the node's memory, and shown whole to every rank.

Each rank puts its gradients, scaled by 1/N, into a window of its own; then every rank adds its part of all windows, in rank order.
So two ranks get the bits that DistributedDataParallel gets, and the result never depends on who comes first."""
import torch

from .. import core
from ..process import events
from . import homes, memory

WINDOW = 2 << 20  # bytes of gradients that a rank puts out at a time
_windows = {}  # store group: two lists of one flat tensor of each rank


def _windows_of(group):
    if group not in _windows:
        made = memory.regions(group, [(torch.empty(WINDOW, dtype=torch.uint8, device="meta"), torch.uint8, WINDOW)] * (2 * group.world),
                              "the ranks' gradients", False)
        shared = [region.shared for region in made]
        _windows[group] = shared[:group.world], shared[group.world:]
    return _windows[group]


def _taken(home):
    """The gradient that autograd gave fully_shard's gathered parameter; None: none."""
    sharded = home.sharded
    if sharded is None or not hasattr(sharded, "_unsharded_param"):
        return None
    found, sharded.unsharded_accumulated_grad = sharded.unsharded_accumulated_grad, None
    if found is None:
        found = sharded._unsharded_param.grad
    sharded._unsharded_param.grad = None
    return found


def _sum_type(home):
    policy = home.model.policy
    return home.dtype if home.sharded is None else policy.reduce_dtype or policy.param_dtype or home.dtype


def _rounds(wanted):
    """Lists of (home, first element, end, first byte in the window): what goes through the windows at a time."""
    rounds, used = [[]], 0
    for home in wanted:
        size, first, total = _sum_type(home).itemsize, 0, home.p.numel()
        while first < total:
            if WINDOW - used < max(size, 64):
                rounds.append([])
                used = 0
            end = min(total, first + (WINDOW - used) // size)
            rounds[-1].append((home, first, end, used))
            used = min(-(-(used + (end - first) * size) // 64) * 64, WINDOW)
            first = end
    return [r for r in rounds if r]


def _at(window, dtype, first_byte, count):
    return window[first_byte:first_byte + count * dtype.itemsize].view(dtype)


def _put(out, home, new, first, end, scale):
    """A rank's gradient: what p.grad holds and what autograd has made, as DistributedDataParallel adds them."""
    parts = [home.flat(t)[first:end] for t in (home.p.grad, new) if t is not None]
    if not parts:
        out.zero_()
    elif len(parts) == 2:
        out.copy_(parts[0] + parts[1].to(parts[0].dtype))
    else:
        out.copy_(parts[0])
    out.mul_(scale)


def _synchronize(model):
    group, world = model.group, model.world
    new = {h: _taken(h) for h in model.homes}
    for home in model.homes:
        if not home.averaged:
            _keep(home, new.pop(home))
    used = [h.averaged and (new[h] is not None or h.touched) for h in model.homes]
    held = [[r.is_held() and not (h.p.grad is not None and r.shows(h.p.grad)) for h, r in zip(model.homes, regions)] for regions in model.generations]
    flags = group.union([*used, *(flag for generation in held for flag in generation)], "a backward pass")
    if flags is None:
        raise core.GroupError("castor: fsdp: the ranks' models differ")
    count = len(model.homes)
    wanted = [i for i in range(count) if flags[i]]
    free = [g for g in range(len(held)) if not any(flags[(g + 1) * count + i] for i in wanted)]
    if not free:
        described = [(h.p, h.dtype, h.p.numel()) for h in model.homes]
        model.generations.append(memory.regions(group, described, "the model's gradients"))
        free = [len(model.generations) - 1]
    regions = dict(zip(model.homes, model.generations[free[0]]))
    wanted = [model.homes[i] for i in wanted]
    _average(group, world, wanted, new, regions)
    for home in wanted:
        _show(home, regions[home])
    for home in model.homes:
        home.touched = False
    model.expecting = False


def _average(group, world, wanted, new, regions):
    pairs = _windows_of(group)
    for number, pieces in enumerate(_rounds(wanted)):
        windows = pairs[number % 2]
        for home, first, end, at in pieces:
            out = _at(windows[group.rank], _sum_type(home), at, end - first)
            _put(out, home, new[home], first, end, 1.0 / world)
            if end == home.p.numel():
                new[home] = None
        group.barrier("a backward pass")
        for home, first, end, at in pieces:
            total, dtype = end - first, _sum_type(home)
            a, b = total * group.rank // world, total * (group.rank + 1) // world
            summed = _at(windows[0], dtype, at, total)[a:b].clone()
            for window in windows[1:]:
                summed += _at(window, dtype, at, total)[a:b]
            regions[home].shared[first + a:first + b].copy_(summed)
    group.barrier("a backward pass")


def _show(home, region):
    region.refresh()
    if home.p.grad is None or home.touched and not home.had_grad:
        home.p.grad = region.view()
    elif not region.shows(home.p.grad):
        home.p.grad.copy_(region.whole())
    home.shown = home.p.grad, home.p.grad._version


def _keep_local(model):
    """A backward without synchronization (no_sync): p.grad is this rank's own."""
    for home in model.homes:
        _keep(home, _taken(home))


def _keep(home, new):
    if new is not None and home.p.grad is None:
        home.p.grad = new.to(home.dtype)
    elif new is not None:
        home.p.grad += new
    if new is not None or home.touched:
        home.shown, home.touched = None, False


def _began(model):
    return any(h.touched for h in model.homes) or any(
        hasattr(h.sharded, "_unsharded_param") and (h.sharded._unsharded_param.grad is not None or h.sharded.unsharded_accumulated_grad is not None)
        for h in model.homes if h.sharded is not None)


class Observer(events.Observer):
    """Ends the backward passes that reached a wrapped model."""

    def backward_begun(self, outputs, create_graph):
        for model in list(homes.models):
            if create_graph and model.gathered:
                self._refuse_graph()
            for home in model.homes:
                home.had_grad = home.p.grad is not None

    def backward_ended(self, outputs, synchronized):
        with torch.no_grad():
            for model in homes.models:
                model.free_gathered()
            for model in sorted((m for m in homes.models if _began(m)), key=lambda m: m.number):
                (_synchronize if model.expecting else _keep_local)(model)
                model.gathered = False

    def backward_raised(self, error):
        for model in homes.models:
            for home in model.homes:
                _taken(home)
                home.touched = False
            model.free_gathered()
            model.gathered = False

    def gradients_taken(self, inputs, create_graph):
        if create_graph and any(model.gathered for model in homes.models):
            self._refuse_graph()
        inputs = inputs if isinstance(inputs, (list, tuple)) else (inputs,)
        if any(homes.home_of(p) is not None for p in inputs):
            raise core.Error("castor: fsdp: torch.autograd.grad() of a wrapped model's parameters: fully_shard gathers and frees them, so call "
                             "backward() and read p.grad, or use another plugin")

    @staticmethod
    def _refuse_graph():
        raise core.Error("castor: fsdp: create_graph=True: fully_shard frees the gathered parameters that a second derivative needs; use another plugin")
