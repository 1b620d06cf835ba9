"""Parameters that the node keeps once (gemini, fsdp): those that are on the host have pages that all ranks share (interpose/device/homes.h).

Each rank reads them there. What may write to one gives this rank pages of its own first, for as long as the parameter lives. Owners write what they have stepped
into the shared pages; before that all ranks have read what they held, and after it those with pages of their own copy it from there:
two collectives in the order of the stream, and no host waits. On each other node the rank that has the owner's place there gets it into the pages of that node.
Pages of a rank's own on the host are given up after a step, for a while that doubles each time.

What is no matrix is read by kernels that could write it: it stays on every rank, and owners broadcast it."""
import collections
import ctypes
import zlib

import torch
import torch.distributed as dist

from .. import core
from ..common import tensors
from ..device import homes, pools
from . import alike, arrivals, entries, pages

AT_ONCE = 256 << 20  # bytes that are on the host once more while they come to be shared
_ON_DEVICE, _ON_HOST, _SHARED, _STAYS = range(4)  # what ranks tell each other of a parameter


class Home:
    """A home of which the node keeps the pages.

    count   of the parameters in it
    steps   until this rank gives up pages of its own there, and how many there were the last time"""

    __slots__ = "start", "count", "steps", "pause"

    def __init__(self, start):
        self.start, self.count, self.steps, self.pause = start, 0, 1, 1

    def waits(self):
        """A step is over, and this rank has pages of its own. Whether it keeps them."""
        self.steps -= 1
        if self.steps:
            return True
        self.pause *= 2
        self.steps = self.pause
        return False


class Node:
    """What the node keeps of a parameter.

    address  of the parameter
    view     a tensor over the shared pages that is shaped like it"""

    __slots__ = "address", "view", "home"

    def __init__(self, p, beside, home):
        self.address, self.view, self.home = p.data_ptr(), pages.over(beside, p), home
        home.count += 1


def serves(group):
    return core.plugin_shards() > 2 and not group.shares_nothing


def _may(p):
    """Whether it is worth it: a matrix, with memory that can be laid out alike."""
    return p.dim() > 1 and p.numel() and tensors.is_dense(p)


def is_due(group, some):
    """Whether this rank has something to share, or has lost what it shared. some: (parameter, entry) each."""
    if not serves(group):
        return False
    if any(entry.node is not None and p.data_ptr() != entry.node.address for p, entry in some):
        return True
    device = some[0][0].device.index
    there = homes.statistics(device).bytes[homes.PARAMETER][core.HOME_HOST] if device in homes.devices() else 0
    if there == group.parameters_on_host:
        return False
    group.parameters_on_host = there
    return _ON_HOST in _states(some)


def _states(some):
    tiers = homes.tiers([p for p, _ in some])
    return [_state(p, entry, tier) for (p, entry), tier in zip(some, tiers)]


def _state(p, entry, tier):
    if entry.stays or not _may(p):
        return _STAYS
    if entry.node is not None:
        return _SHARED if p.data_ptr() == entry.node.address else _STAYS
    return _ON_HOST if tier == core.HOME_HOST else _ON_DEVICE


def share(group, some):
    """What is on the host of some rank, or is not for some ranks to compute with, is shared from now on. On all ranks together, with the same parameters, which
    have the same values."""
    if not some or not serves(group):
        return
    came, states_here = arrivals.told([p for p, _ in some]), _states(some)
    said = [float(value) for (_, entry), state, (number, given) in zip(some, states_here, came) for value in (state, number, given, bool(entry.away))]
    every = group.control.gather(said, "which parameters are on the host")
    chosen, arrived = collections.defaultdict(list), []  # by the ranks that they are away from, since these have the homes on the host
    for number, ((p, entry), (mark, _)) in enumerate(zip(some, came)):
        states, marks, given, away = zip(*(said[4 * number:4 * number + 4] for said in every))
        if all(state == _SHARED for state in states):
            continue
        entry.node = None
        entry.stays = entry.stays or _STAYS in states or _SHARED in states
        if not entry.stays and _have_same_pages(group, marks, given):
            arrived.append((p, entry))
        else:
            if mark:
                core.homes_part(pages.addresses([p]), 1)
            if not entry.stays and (_ON_HOST in states or any(away)):
                chosen[away].append((p, entry))
    arrivals.forget([p for p, _ in some])
    if arrived:
        chosen[()] += _share_arrived(group, arrived)
    for rest in chosen.values():
        while rest and serves(group):
            size, count = 0, 0
            while count < len(rest) and (not count or size + rest[count][0].nbytes <= AT_ONCE):
                size, count = size + rest[count][0].nbytes, count + 1
            _share(group, rest[:count])
            rest = rest[count:]
    _settle(some, states_here)


def _settle(some, states):
    """What ranks other than this one compute with is on the host here, and what this one does with comes back to the device. states: before it was shared."""
    away = _starts([p for p, entry in some if entry.away and not entry.stays and entry.node is not None])
    here = _starts([p for (p, entry), state in zip(some, states) if entry.away is False and entry.node is not None and state == _ON_DEVICE])
    if away:
        core.homes_away(pages.numbers(away), len(away))
    if here:
        pages.tried(core.homes_move, pages.numbers(here), len(here), core.HOME_DEVICE)  # as far as there is room


def _starts(some):
    return list(dict.fromkeys(start for start, _ in pages.homes_of(some)))


def _have_same_pages(group, marks, given):
    """Whether on each node its ranks, and no others, have the same pages: the numbers of these, and how many have taken them from each rank."""
    for node in set(group.nodes):
        here = [rank for rank, of in enumerate(group.nodes) if of == node]
        if not marks[here[0]] or len({marks[rank] for rank in here}) > 1 or sum(given[rank] for rank in here) != len(here) - 1:
            return False
    return True


def _share_arrived(group, some):
    """Parameters that have the same pages on all ranks. Returns those that were given other values since."""
    every = group.control.gather([float(differs) for differs in pages.differ([p for p, _ in some])], "whether parameters are as they arrived")
    same, other = [], []
    for pair, ranks in zip(some, zip(*every)):
        (other if any(ranks) else same).append(pair)
    starts = pages.addresses([p for p, _ in other])
    core.homes_part(starts, len(starts))
    if same:
        _end(group, _join(group, same, [p.data_ptr() for p, _ in same]))
    return other


def arrived_alike(group, some):
    """For each parameter, whether it arrived on all ranks in the same pages, which nobody has left. On all ranks together."""
    numbers = [float(number if joined else 0) for (number, _), joined in zip(arrivals.told(some), pages.are_joined(some))]
    every = group.control.gather(numbers, "which parameters the ranks share")
    return [numbers[0] > 0 and len(set(numbers)) == 1 for numbers in zip(*every)]


def _agree(group, this, what):
    """Whether it is so on all ranks."""
    return all(said for said, in group.control.gather([float(this)], what))


def _share(group, some):
    starts = _move(group, some)
    if not starts:
        return
    why = _pass(group, pages.numbers(starts))
    if why is None:
        why = _join(group, [(p, entry) for p, entry in some if not entry.stays], starts)
    _end(group, why)


def _end(group, why):
    """The ranks share what they could; why: None, or why there is no more."""
    if why is not None:
        group.shares_nothing = True
    if why:
        core.log(2, f"each rank keeps all parameters on the host: {why.removeprefix('castor: ')}".encode())


def _join(group, some, starts):
    """Homes whose parameters have the values of the shared pages on all ranks are joined. Returns why not, "" if another rank says it."""
    parameters = [p for p, _ in some]
    besides, homes_of = pages.beside(parameters), [start for start, _ in pages.homes_of(parameters)]
    other = {start for start, differs in zip(homes_of, pages.differ(parameters)) if differs}
    if not group.one_node:  # what this node has is what the first one has
        every = group.control.gather(alike.digests(parameters), "whether parameters are alike")
        other |= {start for start, here, first in zip(homes_of, every[group.rank], every[0]) if here != first}
    every = group.control.gather([float(start in other) for start in starts], "whether parameters are alike")
    apart = [start for start, ranks in zip(starts, zip(*every)) if any(ranks)]
    joins = [start for start in starts if start not in apart]
    core.homes_part(pages.numbers(apart), len(apart))
    there = {start for start, joined in zip(homes_of, pages.are_joined(parameters)) if joined}
    fresh = [start for start in joins if start not in there]
    why = pages.tried(core.homes_join, pages.numbers(fresh), len(fresh))
    if not _agree(group, why is None, "whether memory is shared"):
        core.homes_part(pages.numbers(joins), len(joins))
        return why or ""
    kept = {start: Home(start) for start in joins}
    for (p, entry), beside, start in zip(some, besides, homes_of):
        entry.stays = start in apart
        if not entry.stays:
            entry.node = Node(p, beside, kept[start])
            alike.see(p, entry)
    return None


def _move(group, some):
    """Moves the parameters into homes that hold nothing else, and are laid out alike on all ranks. Returns these; what is not alike stays."""
    device = some[0][0].device
    closed = homes.apart(homes.PARAMETER, device.index)
    moved = [pages.is_whole(p) and _moves(p, closed) for p, _ in some]
    pools.end(closed)
    homes.release(homes.PARAMETER, device.index)
    pools.empty_cache()  # segments of pools that were released before go only so
    found = pages.homes_of([p for p, _ in some])
    numbers = {start: number for number, start in enumerate(dict.fromkeys(start for start, _ in found))}
    said = [float(value) for (p, _), is_moved, (start, size) in zip(some, moved, found)
            for value in (is_moved, numbers[start], p.data_ptr() - start if start else 0, size)]
    every = group.control.gather(said, "where parameters are")
    differs = set()
    for number, ((p, entry), (start, _)) in enumerate(zip(some, found)):
        places = {tuple(said[4 * number:4 * number + 4]) for said in every}
        if len(places) > 1 or not moved[number] or not start:
            entry.stays = True
            differs.add(number)
    left_out = {numbers[found[number][0]] for number in differs}
    left_out = {int(number) for said in group.control.gather([float(number in left_out) for number in range(len(some))], "where parameters are")
                for number, is_out in enumerate(said) if is_out}
    for (_, entry), (start, _) in zip(some, found):
        entry.stays = entry.stays or numbers[start] in left_out
    return [start for start, number in numbers.items() if number not in left_out]


def _moves(p, closed):
    try:
        return homes.move(p, homes.PARAMETER, drain=True, pools_=closed)
    except torch.OutOfMemoryError:
        return False


def _pass(group, starts):
    """The pages of the homes of each node's first rank become those that its ranks share. Returns why not, "" if another rank says it."""
    group.passed += 1
    name = f"homes-{zlib.crc32(repr(tuple(group.ranks)).encode())}-{group.nodes[group.rank]}-{group.passed}"
    place, ranks = group.places[group.rank], len(group.beside)
    pieces = core.homes_pieces(starts, len(starts))
    descriptors = pages.descriptors(pieces)
    first = place == 0
    why = pages.tried(core.homes_offer, starts, len(starts), descriptors) if first else None
    if not _agree(group, why is None, "whether memory can be shared"):
        return why or ""
    try:
        for at in range(0, pieces, core.DESCRIPTORS):
            count = min(core.DESCRIPTORS, pieces - at)
            some = (ctypes.c_int32 * count).from_buffer(descriptors, 4 * at)
            core.descriptors_pass(f"{name}-{at}".encode(), group.secret, place, ranks, some, count)
        if not first:
            why = pages.tried(core.homes_take, starts, len(starts), descriptors)
    finally:
        pages.close(descriptors)
    if _agree(group, why is None, "whether memory is shared"):
        return None
    if why is None:
        core.homes_part(starts, len(starts))
    return why or ""


class Step:
    """One step of owners, on all ranks together. some: (parameter, entry) of what the node keeps and is stepped."""

    def __init__(self, group, device, some):
        self.group, self.device, self.some = group, device, some
        self.written = set()  # addresses of parameters that were written into the shared pages
        self.views = {}
        if some:
            core.homes_read(device.index, torch.cuda.current_stream(device).cuda_stream)
            self._pass_together()
            mine = [(p, entry) for p, entry in some if entry.mine]
            self.views = {p.data_ptr(): entry.node.view for (p, entry), joined in zip(mine, pages.are_joined([p for p, _ in mine])) if joined}

    def _pass_together(self):
        """What the streams of all ranks have enqueued before is done before anything comes after it."""
        if self.group.token is None:
            self.group.token = torch.zeros(1, device=self.device)
        dist.all_reduce(self.group.token, group=self.group.process_group, async_op=True).wait()

    def target(self, home):
        """Where a parameter that was stepped in a copy is written: `home`, or the shared pages of it."""
        view = self.views.get(home.data_ptr())
        if view is None:
            return home
        self.written.add(home.data_ptr())
        return view

    @torch.no_grad()
    def publish(self):
        if not self.some:
            return
        joined = dict(zip((id(p) for p, _ in self.some), pages.are_joined([p for p, _ in self.some])))
        own = [(p.data, entry) for p, entry in self.some if entry.mine and not joined[id(p)]]
        for values, entry in own:
            if values.data_ptr() in self.written:
                values.copy_(entry.node.view)
            else:
                entry.node.view.copy_(values)
        self._send_to_nodes()
        self._pass_together()
        for p, entry in self.some:
            if not entry.mine and not joined[id(p)]:
                p.data.copy_(entry.node.view)
        apart = [(p, entry) for p, entry in self.some if not joined[id(p)]]
        tiers = homes.tiers([p for p, _ in apart])
        self._count([(p, entry) for (p, entry), tier in zip(apart, tiers) if tier == core.HOME_DEVICE])
        self._join_again(apart, tiers)
        there = [p for p, _ in self.some if joined[id(p)]]
        core.homes_written(self.device.index, torch.cuda.current_stream(self.device).cuda_stream, pages.addresses(there),
                           pages.numbers([p.nbytes for p in there]), len(there))

    def _send_to_nodes(self):
        """From the node of each owner to the others."""
        group = self.group
        if group.one_node:
            return
        sent = [entry for _, entry in self.some if group.places[entry.owner] == group.places[group.rank]]
        if sent:
            owners = [group.in_lane.index(entry.owner) for entry in sent]
            group.broadcast(zip([entries.flat(entry.node.view) for entry in sent], owners), self.device, group.lane)

    def _count(self, on_device):
        """What has passed the link."""
        stream = torch.cuda.current_stream(self.device).cuda_stream
        for mine, tier in (True, core.HOME_HOST), (False, core.HOME_DEVICE):
            size = sum(p.nbytes for p, entry in on_device if entry.mine is mine)
            if size:
                core.event_device_copied(self.device.index, tier, size, stream)

    def _join_again(self, apart, tiers):
        """Homes of which everything was just stepped hold what the shared pages do."""
        stepped = collections.Counter(entry.node.home for p, entry in apart if p.data_ptr() == entry.node.address)
        tiers = {entry.node.home: tier for (_, entry), tier in zip(apart, tiers)}
        found = [home.start for home, count in stepped.items() if count == home.count and tiers[home] == core.HOME_HOST and not home.waits()]
        if found and (why := pages.tried(core.homes_join, pages.numbers(found), len(found))):
            core.log(3, f"this rank keeps parameters on the host for itself: {why.removeprefix('castor: ')}".encode())
