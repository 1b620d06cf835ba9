"""CASTOR_LAZY_INIT on devices (gemini, fsdp): a large parameter that a module has moved to a device, and that is on the host there, is shared by the ranks of
the node at once, before there is a group of them: so none ever has the whole model for itself.

Who comes first with these bytes offers its pages, under a name that is made of them; others take the pages, compare, and map them instead of their own. Nobody
waits until another rank moves its model, and a rank that has other values, or another model, keeps its own. Until a group goes on with the
pages (shared.py) nobody writes to them: a rank that writes has pages of its own first."""
import collections
import functools
import hashlib
import os
import time

import torch

from .. import core, lazy
from ..common import store, tensors
from ..device import adoption, homes, pools
from ..precision import masters
from ..process import events
from . import alike, pages

LARGE = 10 << 20  # bytes: PyTorch's allocator makes a segment for it alone, and so there is a home for it alone
MOST_OPEN = 256  # descriptors that wait for other ranks
PATIENCE_S = 10.0  # until some of them are taken
COPY_S = 60.0  # until who has claimed a name gives the pages, which it copies

_seen = collections.Counter()  # contents of parameters: how often they have come
_arrivals = {}  # where a home begins: its Arrival
_pools = {}  # device: as homes.born has them, for what is large
_gave_up = False  # other ranks do not come for what this one offers


class Arrival:
    """Shared pages of a home.

    number  on all ranks that have the same pages
    offer   of this rank, which made them; 0: it has ended, or another rank made them
    given   how many ranks have taken them from this one"""

    __slots__ = "number", "offer", "given"

    def __init__(self, number, offer=0):
        self.number, self.offer, self.given = number, offer, 0

    def end(self):
        self.given += core.offer_end(self.offer)
        self.offer = 0


def _ranks():
    """Of the node."""
    return core.options.world_size or int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _serves():
    return core.plugin_shards() > 2 and lazy.was_wanted() and masters.dtype is None and _ranks() > 1 and store.active()


def _placing(fn, device):
    """`fn`, with which a module moves its tensors to a device: what it makes is in homes there. None: nothing arrives here."""
    if not _serves():
        return None

    def place(t):
        large = type(t) is torch.nn.Parameter and t.dim() > 1 and t.nbytes >= LARGE
        if large and device not in _pools and homes.available(device):
            _pools[device] = homes.apart(homes.PARAMETER, device)
        with homes.born(homes.PARAMETER, device, _pools.get(device) if large else None):
            placed = fn(t)
        if large and placed is not t and not torch.cuda.is_current_stream_capturing():
            _arrive(placed)
        return placed

    return place


@torch.no_grad()
def _arrive(t):
    (start, size), = pages.homes_of([t]) if t.is_cuda and t.numel() else [(0, 0)]
    if start != t.data_ptr() or not start or size - t.nbytes >= LARGE or t.nbytes < LARGE or not pages.is_whole(t) or not tensors.is_dense(t):
        return  # or not alone in its home
    if homes.tiers([t])[0] != core.HOME_HOST or core.homes_pieces(pages.numbers([start]), 1) > core.DESCRIPTORS:
        return
    if start in _arrivals:  # the home was another parameter's before
        _arrivals.pop(start).end()
    if pages.beside([t])[0]:
        core.homes_part(pages.numbers([start]), 1)
    number = _number(t, size)
    name = f"arrival {number}".encode()
    if not _offer(t, start, number, name):
        _take(t, start, number, name)


def _number(t, size):
    """Of the bytes and their shape, and of how often they have come before."""
    what = f"{tuple(t.shape)} {t.stride()} {t.dtype} {size} {alike.digest(t).item()}"
    _seen[what] += 1
    digest = hashlib.blake2b(f"{what} {_seen[what]}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") & (1 << 53) - 1) or 1  # a double holds it


def _has_room(pieces):
    """Waits until there are not too many offers. False: this rank offers nothing any more."""
    global _gave_up
    before, deadline = core.offers_open(), time.monotonic() + PATIENCE_S
    while not _gave_up and (now := core.offers_open()) + pieces > MOST_OPEN:
        if now < before:
            before, deadline = now, time.monotonic() + PATIENCE_S
        if time.monotonic() > deadline:
            _gave_up = True
            core.log(2, b"CASTOR_LAZY_INIT: other ranks do not move the same parameters to their devices: from here on this rank keeps its own there")
        time.sleep(0.001)
    return not _gave_up


def _offer(t, start, number, name):
    """Offers the pages of a home. False: another rank has these bytes."""
    starts = pages.numbers([start])
    pieces = core.homes_pieces(starts, 1)
    while (offer := core.offer_claim(name)) and core.offers_open() + pieces > MOST_OPEN:
        core.offer_end(offer)  # so that who has the name can come
        if not _has_room(pieces):
            return True
    if not offer:
        return False
    arrival = Arrival(number, offer)
    try:
        torch.cuda.synchronize(t.device)
        descriptors = pages.descriptors(pieces)
        why = pages.tried(core.homes_offer, starts, 1, descriptors) or pages.tried(core.offer_give, offer, descriptors, pieces, _ranks() - 1)
        why = why or pages.tried(core.homes_join, starts, 1)
        if why is None:
            _keep(start, arrival)
        else:
            core.homes_part(starts, 1)
            _say(why)
    finally:
        if _arrivals.get(start) is not arrival:
            arrival.end()
    return True


def _take(t, start, number, name):
    starts = pages.numbers([start])
    pieces = core.homes_pieces(starts, 1)
    descriptors = pages.descriptors(pieces)
    if not core.offer_take(name, descriptors, pieces, COPY_S):
        return
    try:
        why = pages.tried(core.homes_take, starts, 1, descriptors)
    finally:
        pages.close(descriptors)
    if why is None and not pages.differ([t])[0]:
        why = pages.tried(core.homes_join, starts, 1)
        if why is None:
            _keep(start, Arrival(number))
            return
    core.homes_part(starts, 1)
    _say(why)


def _say(why):
    if why:
        core.log(3, f"CASTOR_LAZY_INIT: this rank keeps a parameter on the host for itself: {why.removeprefix('castor: ')}".encode())


def _keep(start, arrival):
    _arrivals[start] = arrival
    _observe()


def told(some):
    """(the number of its pages, how many ranks have taken them from this one) each; (0, 0): it did not arrive so. No rank takes them any more."""
    found = []
    for p, address in zip(some, pages.beside(some) if _arrivals else ()):
        arrival = _arrivals.get(p.data_ptr()) if address else None
        if arrival is not None:
            arrival.end()
        found.append((arrival.number, arrival.given) if arrival is not None else (0, 0))
    return found or [(0, 0)] * len(some)


def forget(some):
    """The pages are a group's, or are shared no more."""
    for p in some:
        _arrivals.pop(p.data_ptr(), None)


class _Observer(events.Observer):
    """Training has begun: who has not come does not come for the parameters as they were."""

    def backward_begun(self, outputs, create_graph):
        for arrival in _arrivals.values():
            if arrival.offer:
                arrival.end()


def _end_pools():
    """Else they keep what no tensor has."""
    for closed in _pools.values():
        pools.end(closed)
    _pools.clear()


@functools.cache
def _observe():
    events.observe(_Observer())


def install():
    adoption.placing = _placing
    adoption.before_emptying.append(_end_pools)
