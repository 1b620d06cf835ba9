"""Optimizer classes that say of themselves that they step each parameter on its own.

castor.nn.optimizer declares its classes here when it is imported. steps.py takes them up when a plugin starts, or at once if one
runs. This module needs neither the library nor a plugin."""

_declared = []
_take_up = None


def declare(cls):
    """A decorator of classes whose update of a parameter depends on that parameter, its gradient, its states and its group alone,
    and which count steps for each parameter: a rank may step what it owns, in parts. They write no gradients, but where a group
    says `nesterov`."""
    _declared.append(cls)
    if _take_up is not None:
        _take_up(cls)
    return cls


def has_declared(cls):
    return cls in _declared


def begin(take_up):
    """`take_up` is called with each declared class, now or when it is declared."""
    global _take_up
    _take_up = take_up
    for cls in _declared:
        take_up(cls)
