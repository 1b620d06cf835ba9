"""The cases of train.py: small training programs for a device, written as users write them."""
import functools

from .optimizers import GENERAL

CASES = {}  # by name, in order: the function, and the names of the optimizers that it is run with


def case(function=None, *, optimizers=GENERAL, without=()):
    """Declares a case, a function (log, make): log is a shown.Log, and make(parameters, **options) the optimizer that was asked for.
    without: optimizers of which PyTorch's own fail in it, or give numbers that are not the same twice."""
    if function is None:
        return functools.partial(case, optimizers=optimizers, without=without)
    assert function.__name__ not in CASES, function.__name__
    assert set(without) <= set(optimizers), without
    CASES[function.__name__] = function, tuple(name for name in optimizers if name not in without)
    return function


from . import combinations, given, halves, loops, making, models, precision, stepping, writes  # noqa: E402, F401
from . import of_castor, saved, touched  # noqa: E402, F401 - behind the others: rows.py gives each case devices by its number
