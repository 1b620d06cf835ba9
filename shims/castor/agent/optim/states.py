"""Optimizer states: written by a parameter's owner in its state chunks, seen by every rank.

A state tensor of a page and more is, on every rank, a private view of the owner's chunk; during a step the owner has the
alias. A smaller one stays each rank's own tensor, and its values are copied. Any other object is sent pickled. The owner
lists the states that it stepped in its directory: the parameter's index in the optimizer, the node that steps it (-1: every
node), and its items (key, spec, pickled)."""
import pickle
import weakref
from ctypes import byref, c_size_t, c_uint64, c_void_p, string_at

import torch

from .. import core
from ..common import store, tensors
from ..common.places import Place, layout_of, sharable
from ..nodes import remote


def _identity(state):
    if isinstance(state, remote.RemoteState):
        return state.replaced
    return [(key, id(value), value.data_ptr() if sharable(value) else 0) for key, value in (state or {}).items()]


_by_optimizer = weakref.WeakKeyDictionary()


def of(optimizer):
    """The shared states of an optimizer."""
    if optimizer not in _by_optimizer:
        _by_optimizer[optimizer] = OptimizerStates()
    return _by_optimizer[optimizer]


def _many(places, first, second):
    """Arrays of addresses and sizes for the core's bulk calls."""
    return first, second, (c_uint64 * len(places))(*[p.nbytes for p in places]), len(places)


class OptimizerStates:
    def __init__(self):
        self.places = weakref.WeakKeyDictionary()  # entry: {key: Place}
        self.kept = weakref.WeakSet()  # entries that this rank has stepped
        self.settled = weakref.WeakKeyDictionary()  # entry: its state when the ranks last settled it
        self.remote = weakref.WeakSet()  # entries whose states another node keeps
        self.directories = {}  # rank: (bytes, its content)
        self.local = False  # a step used gradients that were not synchronized: the ranks' values may differ since

    def _places(self, entry):
        """The places of an entry; none after its parameter was registered anew."""
        places = self.places.get(entry)
        if places is None or any(place.handle != entry.handle for place in places.values()):
            places = self.places[entry] = {}
        return places

    # ---- where the script has them

    def away(self, optimizer, pairs):
        """Of (parameter, entry) each, the indices of those with a state that does not lie in the store, on this rank. Of states that another node keeps: of which the
        script has replaced some, as it has there."""
        found = []
        for i, (p, entry) in enumerate(pairs):
            state = optimizer.state.get(p)
            if not entry.shared:
                continue
            if self._is_kept_elsewhere(entry, state):
                if (state is None or state.replaced) and self.settled.get(entry, ()) != _identity(state):
                    found.append(i)
                continue
            places, seen = self._places(entry), 0
            for key, value in (state or {}).items():
                place = places.get(key)
                if place is None and not sharable(value):
                    continue  # it is sent pickled
                if place is None or not place.shows(value):
                    break
                seen += 1
            else:
                if seen == len(places):
                    continue
            if self.settled.get(entry) != _identity(state):  # else it was settled, and has not changed since
                found.append(i)
        return found

    def _is_kept_elsewhere(self, entry, state):
        return isinstance(state, remote.RemoteState) or state is None and entry in self.remote

    def describe(self, optimizer, group, pairs, away):
        """Describes the states of each pair for store.settle. Lets go of places whose states lie elsewhere."""
        away, described = set(away), []
        for i, (p, entry) in enumerate(pairs):
            state, reached = optimizer.state.get(p), False
            if not entry.shared or self._is_kept_elsewhere(entry, state):
                described.append((0, i in away, False))
                self.settled[entry] = _identity(state)
                continue
            places = self._places(entry)
            for key, place in places.items() if i in away else ():
                value = (state or {}).get(key)
                if not isinstance(value, torch.Tensor) or not place.shows(value):
                    place.let_go(group, entry)
            for key, value in (state or {}).items() if i in away else ():
                if sharable(value) and core.is_paged(value.nbytes) and (key not in places or places[key].tensor is None):
                    reached = reached or tensors.is_reached(value)
            self.settled[entry] = _identity(state)
            digests = [(str(key), tensors.digest(value, core.digest)) for key, value in (state or {}).items()]
            text = repr(sorted(digests)).encode()
            described.append((core.digest(text, len(text)), i in away, reached))
        return described

    # ---- the owner's side

    def enter(self, optimizer, owned):
        """The owner's views become the aliases, with its edits of the views. Returns the argument of leave()."""
        entered = []
        for p, entry in owned:
            for key, value in optimizer.state.get(p, {}).items():
                place = self._places(entry).get(key)
                if place is not None and place.paged and place.shows(value):
                    entered.append(place)
        core.views_push(*_many(entered, core.pointers([p.view_address for p in entered]),
                               core.pointers([p.alias_address for p in entered])))
        for place in entered:
            place.tensor.data = place.alias
        return entered

    def leave(self, entered):
        for place in entered:
            if place.tensor.data_ptr() == place.alias_address:
                place.tensor.data = place.view

    def has_new(self, tensors):
        """Whether the optimizer will make states: it has never stepped one of (index, parameter, entry) each."""
        return any(entry not in self.kept for _, _, entry in tensors)

    def keep(self, optimizer, group, stepped):
        """After the owner has stepped (index, parameter, entry) each: puts their states into the store."""
        small = []
        for _, p, entry in stepped:
            self.kept.add(entry)
            self.settled.pop(entry, None)  # they lie in the store now: old addresses tell nothing
            for key, value in optimizer.state.get(p, {}).items():
                if sharable(value):
                    self._keep(group, entry, key, value, small)
        core.copy_many(*_many(small, core.pointers([p.alias_address for p in small]),
                              core.pointers([p.tensor.data_ptr() for p in small])))

    def directory(self, optimizer, group, stepped):
        """The data with which other ranks find the states of (index, parameter, entry) each, all that this owner has stepped."""
        directory = []
        node = group.across.place.node if group.sharded else -1
        for index, p, entry in stepped:
            items = [
                (key, self.places[entry][key].spec, None) if sharable(value) else (key, None, pickle.dumps(value))
                for key, value in optimizer.state.get(p, {}).items()
            ]
            directory.append((index, node, items))
        return directory

    def _keep(self, group, entry, key, value, small):
        """Moves a state that the optimizer made or replaced to its place. One that lies there already stays."""
        places = self._places(entry)
        place = places.get(key)
        if place is None or place.spec[1:] != layout_of(value):
            place = places[key] = self._place(group, entry, value)
        if not place.paged:
            place.tensor = value
            small.append(place)
        elif place.tensor is not value or value.data_ptr() != place.view_address:
            place.alias.copy_(value)
            value.data = place.view
            place.tensor = value

    def _place(self, group, entry, value):
        offset, alias = c_uint64(), c_void_p()
        nbytes = value.numel() * value.element_size()
        core.state_allocate(entry.handle, nbytes, byref(offset), byref(alias))
        place = Place((offset.value, *layout_of(value)), entry.handle)
        place.alias_address = alias.value
        if place.paged:
            place.alias = tensors.tensor_at(alias.value, value)
            place.make_view(group, entry)
        return place

    # ---- the other ranks' side

    def fetch(self, optimizer, group, pairs, fresh):
        """After publication: takes the states that other ranks stepped. `fresh`: this rank's step has added some."""
        edited, small = [], []
        for rank in range(group.world):
            if rank == group.rank and not group.sharded:
                continue
            size = c_size_t()
            address = core.directory_get(group.handle, rank, byref(size))
            data = string_at(address, size.value)
            if self.directories.get(rank, (None,))[0] != data:
                self.directories[rank] = (data, pickle.loads(data))
            for index, node, items in self.directories[rank][1]:
                p, entry = pairs[index]
                here = node < 0 or node == group.across.place.node
                if here and rank == group.rank or not items and p not in optimizer.state:
                    continue
                fresh = fresh or p not in optimizer.state
                if here:
                    self._take(group, optimizer.state[p], entry, items, edited, small)
                else:
                    self._take_remote(optimizer, group.across.peers[node], p, items)
                    self.remote.add(entry)
                    self.settled.pop(entry, None)
        core.views_drop(core.pointers([p.view_address for p in edited]),
                        (c_uint64 * len(edited))(*[p.nbytes for p in edited]), len(edited))
        core.copy_many(*_many(small, core.pointers([p.tensor.data_ptr() for p in small]),
                              core.pointers([p.view_address for p in small])))
        if group.sharded:
            remote.read_held(optimizer)
        if fresh:
            order_as_parameters(optimizer)

    @staticmethod
    def _take_remote(optimizer, peer, p, items):
        state = optimizer.state.get(p)
        if isinstance(state, remote.RemoteState):
            state.renew(items)
        else:
            optimizer.state[p] = remote.RemoteState(remote.OfNode(peer), items, state)

    def _take(self, group, state, entry, items, edited, small):
        self.settled.pop(entry, None)
        names, places = {key for key, _, _ in items}, self._places(entry)
        for key in [k for k in state if k not in names]:
            del state[key]
        for key in [k for k in places if k not in names]:
            del places[key]
        for key, spec, pickled in items:
            key = remote.key_of(key)
            if spec is None:
                state[key] = pickle.loads(pickled)
                continue
            place = places.get(key)
            if place is None or place.spec != spec:
                place = places[key] = Place(spec, entry.handle)
                place.make_view(group, entry)
            if place.tensor is None:
                self._stand_in(place, state.get(key))
            (edited if place.paged else small).append(place)
            if state.get(key) is not place.tensor:
                state[key] = place.tensor

    @staticmethod
    def _stand_in(place, value):
        """From here on the script's tensor shows the place. If it does not fit, a tensor of ours replaces it."""
        fits = sharable(value) and layout_of(value) == place.spec[1:]
        if not place.paged:
            place.tensor = value if fits else torch.empty_strided(*place.spec[1:3], dtype=place.spec[3], device="cpu")
        else:
            place.tensor = value if fits else place.view.detach()
            place.tensor.data = place.view


def directory_put(group, directory):
    data = pickle.dumps(directory)
    core.directory_put(group.handle, data, len(data))


def order_as_parameters(optimizer):
    """Plain PyTorch inserts states in the order of the parameters; files depend on it."""
    ordered = [(p, optimizer.state[p]) for p in store.parameters_of(optimizer) if p in optimizer.state]
    known = {p for p, _ in ordered}
    rest = [(p, s) for p, s in optimizer.state.items() if p not in known]
    optimizer.state.clear()
    optimizer.state.update(ordered + rest)
