"""Optimizer states on devices that another rank keeps. The owner shows them after each step; who looks at them reads them from there."""
import pickle

import torch

from ..common import tensors
from ..device import homes
from . import kept


class Owner:
    """The states of an optimizer that one rank keeps, as a step has left them.

    shown    of the optimizer (kept.Shown)
    version  the number of the step"""

    def __init__(self, shown, rank, device):
        self.peer, self.shown, self.device = kept.peers_of(shown.group)[rank], shown, device
        self.version, self.found = 0, None

    def renew(self):
        self.version, self.found = self.shown.version, None

    def directory(self):
        """By the number of a parameter: its items, (key, spec (number of the range, shape, strides, dtype), pickled)."""
        if self.found is None:
            self.found = pickle.loads(kept.directory(self.peer, self.shown.name, self.version))
        return self.found

    def read(self, states):
        directory, wanted = self.directory(), []
        for state in states:
            for key, spec, pickled in directory.get(state.items_there, ()):
                if spec is None:
                    state.take(key, pickle.loads(pickled))
                    continue
                number, shape, stride, dtype = spec
                wanted.append((number, torch.empty_strided(shape, stride, dtype=dtype, device="cpu"), state, key))
        kept.read(self.peer, self.shown.name, self.version, [(number, value) for number, value, *_ in wanted])
        with homes.born(homes.STATE, self.device.index):
            for _, value, state, key in wanted:
                state.take(key, value.to(self.device))


def _is_readable(value, device):
    return (type(value) is torch.Tensor and value.device == device and value.layout is torch.strided and value.numel() > 0
            and not value.requires_grad and tensors.is_dense(value))


def show(shown, device, stepped):
    """`stepped`: (number, state) of each parameter that this rank has stepped."""
    directory, found = {}, []
    for number, state in stepped:
        items = directory[number] = []
        for key, value in state.items():
            if _is_readable(value, device):
                items.append((key, (len(found), tuple(value.shape), value.stride(), value.dtype), None))
                found.append(value)
            else:
                items.append((key, None, pickle.dumps(value)))
    kept.show(shown.name, shown.version, device, found, pickle.dumps(directory))
