"""Optimizer states on devices that another rank keeps. The owner shows them after each step; who looks at them reads them from there."""
import pickle

import torch

from ..common import tensors
from . import kept


class Owner:
    """The states of an optimizer that one rank keeps, as a step has left them; `version`: its number."""

    def __init__(self, group, rank, name, device):
        self.peer, self.name, self.device = kept.peers_of(group)[rank], name, device
        self.version, self.found = 0, None

    def renew(self, version):
        self.version, self.found = version, None

    def directory(self):
        """By the number of a parameter: its items, (key, spec (number of the range, shape, strides, dtype), pickled)."""
        if self.found is None:
            self.found = pickle.loads(kept.directory(self.peer, self.name, self.version))
        return self.found

    def read(self, states):
        directory, wanted = self.directory(), []
        for state in states:
            for key, spec, pickled in directory.get(state.items_there, ()):
                if spec is None:
                    state.take(key, pickle.loads(pickled))
                    continue
                number, shape, stride, dtype = spec
                wanted.append((number, torch.empty_strided(shape, stride, dtype=dtype), state, key))
        kept.read(self.peer, self.name, self.version, [(number, value) for number, value, *_ in wanted])
        for _, value, state, key in wanted:
            state.take(key, value.to(self.device))


def _is_readable(value, device):
    return (type(value) is torch.Tensor and value.device == device and value.layout is torch.strided and value.numel() > 0
            and not value.requires_grad and tensors.is_dense(value))


def show(name, version, device, stepped):
    """`stepped`: (number, state) of each parameter that this rank has stepped."""
    directory, ranges = {}, []
    for number, state in stepped:
        items = directory[number] = []
        for key, value in state.items():
            if _is_readable(value, device):
                items.append((key, (len(ranges), tuple(value.shape), value.stride(), value.dtype), None))
                ranges.append((value.data_ptr(), value.numel() * value.element_size()))
            else:
                items.append((key, None, pickle.dumps(value)))
    kept.show(name, version, device, ranges, pickle.dumps(directory))
