"""Arrays of random numbers from NumPy's global generator, with a row for each sample: split as draws.py splits tensors."""
import functools
import sys

from .. import patching
from . import randomness

_IN_PLACE = ("seed", "set_state", "get_state", "shuffle", "permutation", "bytes")  # not rows for samples


def _for_shape(args, kwargs, shape, whole):
    """The arguments that draw the array in the whole batch's shape; None: no argument gives its size."""

    def is_shape(value):
        return value == shape[0] and len(shape) == 1 if isinstance(value, int) else isinstance(value, (tuple, list)) and tuple(value) == shape

    if is_shape(kwargs.get("size")):
        return args, {**kwargs, "size": whole}
    if args == shape:  # rand, randn
        return whole, kwargs
    at = next((i for i in reversed(range(len(args))) if is_shape(args[i])), None)
    return None if at is None else ((*args[:at], whole, *args[at + 1:]), kwargs)


def _wrap(numpy, draw):
    @functools.wraps(draw)
    def wrapper(*args, **kwargs):
        if not randomness.splits():
            return draw(*args, **kwargs)
        before = numpy.random.get_state()
        made = draw(*args, **kwargs)
        place = randomness.place_of(made.shape) if isinstance(made, numpy.ndarray) else None
        if place is None:
            return made
        batch, dimension, rows = place
        whole = (*made.shape[:dimension], batch.count * rows, *made.shape[dimension + 1:])
        arguments = _for_shape(args, kwargs, made.shape, whole)
        if arguments is None:
            randomness.note_loose()
            return made
        numpy.random.set_state(before)
        own = slice(batch.first * rows, (batch.first + batch.size) * rows)
        return draw(*arguments[0], **arguments[1])[(slice(None),) * dimension + (own,)].copy()

    wrapper.__module__ = "numpy.random"  # by which it is pickled
    return wrapper


def install():
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        patching.replace("numpy.random.*", lambda draw: draw if draw.__name__ in _IN_PLACE else _wrap(numpy, draw))
