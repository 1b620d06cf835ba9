"""Optimizer states that another node, or another rank, keeps: read from it when the script looks at them, and forgotten at the next step."""
import copy
import ctypes
import functools
import pickle
import sys
import typing
import weakref

import torch

from .. import core, patching
from ..common import store
from . import peers


def key_of(key):
    """A received key, as plain PyTorch has it: pickles depend on its identity."""
    return sys.intern(key) if isinstance(key, str) else key


class RemoteState(dict):
    """The value in optimizer.state of a parameter that another node's owner steps, or another rank. Edits are lost at the next step, as
    they are on every rank but the owner's.

    source       has a function read(states), which gives each its items by take(); equal sources read together
    items_there  what the source needs to know
    given        weak references to the tensors that were here before, by their keys: who holds one sees the new values in it, as an optimizer
                 writes them in place
    changes      how often the script has put other items here
    addresses    of the tensors that were read, by their keys"""

    __slots__ = ("source", "items_there", "here", "names", "given", "changes", "addresses")

    def __init__(self, source, items, before):
        """`before`: the earlier state there, whose keys stay the same objects."""
        super().__init__()
        self.source, self.items_there, self.here = source, items, False
        self.names = {key: key for key in before or ()}
        self.given = _references(before or {})
        self.changes, self.addresses = 0, {}

    @torch.no_grad()
    def take(self, key, value):
        given = self.given.pop(key, lambda: None)()
        if given is not None and isinstance(value, torch.Tensor) and (given.shape, given.dtype) == (value.shape, value.dtype):
            value = given.copy_(value)
        if isinstance(value, torch.Tensor):
            self.addresses[key] = value.data_ptr()
        dict.__setitem__(self, self.names.get(key) or key_of(key), value)

    def renew(self, items):
        self.items_there, self.here = items, False
        self.given = {**self.given, **_references(self)}
        self.changes, self.addresses = 0, {}
        dict.clear(self)

    @property
    def is_held(self):
        """The script holds a tensor of what was here before."""
        return not self.here and any(reference() is not None for reference in self.given.values())

    @property
    def replaced(self):
        """What tells whether the script has put other items, or other memory, here; (): it has not. Edits of the tensors as they lie are no such change."""
        moved = [(key, value.data_ptr()) for key, value in dict.items(self)
                 if isinstance(value, torch.Tensor) and self.addresses.get(key, value.data_ptr()) != value.data_ptr()] if self.here else ()
        return (self.changes, *moved) if self.changes or moved else ()

    def read(self):
        if not self.here:
            self.here = True
            read_states([self])

    def __reduce_ex__(self, protocol):
        self.read()
        return dict, (dict(self),)

    def __copy__(self):
        return self.copy()

    def __deepcopy__(self, memo):
        self.read()
        return copy.deepcopy(dict(self), memo)


def _references(state):
    return {key: weakref.ref(value) for key, value in dict.items(state) if isinstance(value, torch.Tensor)}


def _after_reading(name, changes):
    method = getattr(dict, name)

    @functools.wraps(method)
    def of_all(self, *args, **kwargs):
        self.read()
        self.changes += changes
        return method(self, *args, **kwargs)

    return of_all


for _name in ("__contains__", "__eq__", "__getitem__", "__iter__", "__len__", "__ne__", "__or__", "__repr__", "__reversed__", "__ror__", "copy", "get", "items", "keys",
              "values"):
    setattr(RemoteState, _name, _after_reading(_name, False))
for _name in ("__delitem__", "__ior__", "__setitem__", "clear", "pop", "popitem", "setdefault", "update"):
    setattr(RemoteState, _name, _after_reading(_name, True))


def read_states(states):
    """Reads states that are not here yet: those of one source over one connection."""
    by_source = {}
    for state in states:
        state.here = True
        by_source.setdefault(state.source, []).append(state)
    for source, its in by_source.items():
        source.read(its)


def read_held(optimizer):
    """After a step: what the script holds of the states is the new ones."""
    global _told_of_held
    held = [state for state in of(optimizer) if state.is_held]
    if held and not _told_of_held:
        _told_of_held = True
        core.log(2, b"the script keeps optimizer states that another rank has (a state_dict() in a variable?): they are read after each step, since an "
                    b"optimizer changes them in place. Steps are faster if it drops them, or keeps a copy.deepcopy()")
    read_states(held)


_told_of_held = False


class OfNode(typing.NamedTuple):
    """States that a node keeps in its store: items are (key, spec, pickled), as a directory has them (optim/states.py)."""

    peer: peers.Peer

    def read(self, states):
        read = [(state, key, spec, pickle.loads(pickled) if spec is None else torch.empty_strided(*spec[1:3], dtype=spec[3], device="cpu"))
                for state in states for key, spec, pickled in state.items_there]
        places = [(spec[0], value) for _, _, spec, value in read if spec is not None]
        if places and store.active():
            core.node_read(*self.peer, (ctypes.c_uint64 * len(places))(*(offset for offset, _ in places)),
                           (ctypes.c_uint64 * len(places))(*(value.numel() * value.element_size() for _, value in places)),
                           core.pointers([value.data_ptr() for _, value in places]), len(places))
        for state, key, _, value in read:
            state.take(key, value)  # which copies it to where the script has the one before


def values_here(state):
    """Of a value of optimizer.state, what is in this process."""
    if isinstance(state, RemoteState):
        return dict.values(state) if state.here else ()
    return state.values()


def of(optimizer):
    return [state for state in optimizer.state.values() if isinstance(state, RemoteState)]


def bring_here(optimizer):
    """All states are this rank's own from here on."""
    read_states([state for state in of(optimizer) if not state.here])
    for p, state in list(optimizer.state.items()):
        if isinstance(state, RemoteState):
            optimizer.state[p] = dict(state)


def _saving(state_dict):
    @functools.wraps(state_dict)
    def whole_state_dict(self, *args, **kwargs):
        elsewhere = of(self)
        if not elsewhere:
            return state_dict(self, *args, **kwargs)
        read_states([state for state in elsewhere if not state.here])
        result = state_dict(self, *args, **kwargs)
        for key, state in result.get("state", {}).items():
            if isinstance(state, RemoteState):
                result["state"][key] = dict(state)
        return result

    return whole_state_dict


def install():
    patching.replace("torch.optim.Optimizer.state_dict", _saving)
