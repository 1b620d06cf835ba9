"""A step in owner mode on devices: a rank steps only what it owns, and sends it to the others over the script's process group. Of what the
processors step the other ranks see nothing before it is over."""
import contextlib
import weakref

import torch

from .. import core
from ..common import store, tensors
from ..device import adoption, homes, step_common, step_parts
from ..device_ranks import alike, elsewhere, entries, kept, shared, sums, wides
from ..nodes import remote
from ..precision import masters
from . import agreed, states

_LOADS = "the number of times that the optimizer has loaded states (load them on every rank)"
APART = 64  # entries of _apart

_by_optimizer = weakref.WeakKeyDictionary()


class _Known:
    """What is known of an optimizer's states on devices.

    shown    of them, to other ranks; its version is the number of the last step by owners
    owners   by rank: where its states are read (elsewhere.Owner)
    local    a step used gradients that were not synchronized: each rank steps everything from then on"""

    def __init__(self, group):
        self.shown, self.local, self.owners = kept.Shown(group, group.optimizers), False, {}
        group.optimizers += 1


def pairs_of(optimizer):
    """(number, parameter, entry) of the parameters that owners step, in the optimizer's order."""
    if not core.plugin_shards() or not entries.serves_any():
        return []
    found = [(number, p, entries.entry_of(p)) for number, p in enumerate(store.parameters_of(optimizer))]
    found = [each for each in found if each[2] is not None]
    group = found[0][2].group if found else None
    return [each for each in found if each[2].group is group]


def steps_locally(optimizer, pairs):
    """Whether each rank steps everything for itself: some gradients are not sums, now or in an earlier step."""
    known = _by_optimizer.get(optimizer)
    if known is not None and known.local:
        return True
    if all(entry.synced or not sums.has_grad(p) for _, p, entry in pairs) and not _overlap(tuple(p.data_ptr() for _, p, _ in pairs), pairs):
        return False
    masters.refuse_local(p for _, p, _ in pairs)
    _go_apart(optimizer, pairs[0][2].group)
    return True


def _go_apart(optimizer, group):
    """Each rank steps everything from here on. On all ranks together."""
    remote.bring_here(optimizer)
    group.control.barrier("every rank has all optimizer states")
    _known_of(optimizer, group).local = True


_apart = set()  # addresses of parameters that do not overlap: of each optimizer, as a rule


def _overlap(addresses, pairs):
    """Whether some parameters have memory in common, which no two ranks may write. The same on all ranks."""
    if addresses in _apart:
        return False
    ranges = sorted((address, address + tensors.extent(p)) for address, (_, p, _) in zip(addresses, pairs) if p.numel())
    if any(after[0] < before[1] for before, after in zip(ranges, ranges[1:])):
        return True
    if len(_apart) >= APART:
        _apart.clear()
    _apart.add(addresses)
    return False


def _known_of(optimizer, group):
    if optimizer not in _by_optimizer:
        _by_optimizer[optimizer] = _Known(group)
    return _by_optimizer[optimizer]


def step(optimizer, pairs, run, divisible, running):
    """`run`: a step without a closure."""
    group, device = pairs[0][2].group, pairs[0][1].device
    known = _known_of(optimizer, group)
    shown = known.shown
    if not _begin(optimizer, group, pairs, running):
        masters.refuse_other_values(p for _, p, _ in pairs)
        _go_apart(optimizer, group)
        return step_parts.step_or_run(optimizer, run, divisible)
    kept.hide(shown.name)
    stepped = [each for each in pairs if sums.has_grad(each[1])]
    floats = wides.of(p for _, p, _ in stepped)
    for each in floats:
        each.hide()
    node = shared.Step(group, device, [(p, entry) for _, p, entry in stepped if entry.node is not None])
    mine, others = [each for each in stepped if each[2].mine], [each for each in stepped if not each[2].mine]
    before, writes = len(optimizer.state), step_common.writes_gradients(optimizer)
    with contextlib.ExitStack() as changes, sums.unseen():
        if writes:
            for keep in sums.keeps_of(entry for _, _, entry in stepped):
                changes.enter_context(keep.changing())
        hidden = [(p, p.grad) for _, p, _ in others if p.grad is not None]
        for p, _ in hidden:
            p.grad = None
        try:
            with step_parts.targeted(node.target):
                result = step_parts.step_or_run(optimizer, run, divisible)
        finally:
            _show_hidden(hidden, writes)
        core.device_updates_wait(device.index, torch.cuda.current_stream(device).cuda_stream)
        with torch.no_grad():
            node.publish()
            _publish(group, device, stepped, sums_too=writes)
    shown.version += 1
    homes.available(device.index)
    for each in floats:
        each.stepped()
    elsewhere.show(shown, device, [(number, optimizer.state[p]) for number, p, entry in pairs if entry.mine and p in optimizer.state])
    for number, p, entry in others:
        if entry.owner not in known.owners:
            known.owners[entry.owner] = elsewhere.Owner(shown, entry.owner, device)
    for owner in known.owners.values():
        owner.renew()
    has_states = _Presence(optimizer, mine)
    for number, p, entry in others:
        owner = known.owners[entry.owner]
        if has_states.of(p) or has_states.of(p) is None and number in owner.directory():
            _put_elsewhere(optimizer, p, owner, number)
    remote.read_held(optimizer)
    if len(optimizer.state) > before:
        states.order_as_parameters(optimizer)
    return result


class _Presence:
    """Whether an optimizer has states of parameters that another rank steps, as far as this rank knows it: a class of torch.optim makes some
    for all parameters of a group, or for none."""

    def __init__(self, optimizer, mine):
        self.optimizer, self.groups = optimizer, {}
        if not type(optimizer).__module__.startswith("torch.optim."):
            return
        own = {p: p in optimizer.state for _, p, _ in mine}
        for group in optimizer.param_groups:
            seen = next((own[p] for p in group["params"] if p in own), None)
            self.groups.update((p, seen) for p in group["params"])

    def of(self, p):
        """None: it is not known."""
        return True if p in self.optimizer.state else self.groups.get(p)


def _show_hidden(hidden, written):
    """Gradients of parameters that another rank has stepped. `written`: it may have changed those of which it alone has the sum."""
    for p, grad in hidden:
        entry = entries.entry_of(p)
        if p.grad is None and written and entry.is_single:
            sums.leave(entry.part)
        elif p.grad is None:
            p.grad = grad


def _put_elsewhere(optimizer, p, owner, number):
    state = optimizer.state.get(p)
    if isinstance(state, remote.RemoteState):
        if state.here or state.items_there != number:
            state.renew(number)
    else:
        optimizer.state[p] = remote.RemoteState(owner, number, state)


def _begin(optimizer, group, pairs, running):
    """What owners step with must be what all ranks would. Returns whether they can step: all ranks have the same values."""
    wides.settle_written(p for _, p, _ in pairs)
    suspects = [alike.may_differ(p, entry) for _, p, entry in pairs]
    changed, all_pairs = any(not entry.is_untouched(sums.grad_of(p)) for _, p, entry in pairs), [(p, entry) for _, p, entry in pairs]
    operations, group.operations = float(group.operations), 0
    every = group.control.begin_step([*agreed.values(optimizer, pairs), (_LOADS, float(adoption.loads_of(optimizer)))], [float(changed), operations, float(any(suspects)),
                                                                       float(shared.is_due(group, all_pairs)), *(running.said if running else ())])
    if running:
        running.heard([said for _, _, _, _, *said in every])
    differ = any(operations != every[0][1] for _, operations, *_ in every)
    changed_on = [str(rank) for rank, (changed, operations, *_) in enumerate(every) if changed or differ and operations]
    if changed_on:
        label = f"the checksum of the gradients (the script changed them on rank {', '.join(changed_on)})"
        group.control.begin_step([(label, float(agreed.checksum(p.grad for _, p, _ in pairs)))])
    if any(suspect for _, _, suspect, *_ in every) and not _are_alike(group, pairs, suspects):
        return False
    if any(due for _, _, _, due, *_ in every):
        shared.share(group, all_pairs)
    return True


def _are_alike(group, pairs, suspects):
    by_any = [any(said) for said in zip(*group.control.gather([float(suspect) for suspect in suspects], "which parameters were written"))]
    some = [p for (_, p, _), suspect in zip(pairs, by_any) if suspect]
    return alike.have_all(group, some)


def _publish(group, device, stepped, sums_too):
    """Owners send what they have stepped, and gradients that the step may have written, in the order of the stream."""
    own = [(p, entry) for _, p, entry in stepped if entry.node is None]
    sent = own + [(p.grad, entry) for _, p, entry in stepped if sums_too and not entry.is_single]
    if sent:
        group.broadcast([(entries.flat(t), entry.owner) for t, entry in sent], device)
    changed = sent + [(p, entry) for _, p, entry in stepped if entry.node is not None]
    torch.autograd.graph.increment_version([t for t, entry in changed if not entry.mine])
    for _, p, entry in stepped:
        entry.see(p.grad)
        alike.see(p, entry)
