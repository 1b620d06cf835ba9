"""Random numbers that belong to samples."""
import contextlib
import random
import sys

import torch


def states():
    """Of torch's default generator, Python's and numpy's."""
    numpy = sys.modules.get("numpy")
    return torch.random.get_rng_state(), random.getstate(), None if numpy is None else numpy.random.get_state()


def set_states(states):
    torch.random.set_rng_state(states[0])
    random.setstate(states[1])
    if states[2] is not None:
        sys.modules["numpy"].random.set_state(states[2])


@contextlib.contextmanager
def restored():
    before = states()
    try:
        yield
    finally:
        set_states(before)


def drawn_loosely():
    return False
