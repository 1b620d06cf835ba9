"""What the shares of a device's memory are too small for: it is read over the link, and told once."""
from .. import core
from ..common import tensors
from . import homes

_needed = {}  # device: (bytes, shape) of the parameter whose step needs most
_short = set()  # devices of which a step has shown it; the first step has no states yet, so that the second one tells
_told = set()


def step_of(device, p, needed):
    """The parameter's step has no room for copies."""
    if device not in _told:
        _needed[device] = max(_needed.get(device, (0, "")), (needed, str(tuple(p.shape))))


def tell(parameters, last=False):
    """At the end of a step, or of the process, which is the last time. parameters: those that are known."""
    for device in homes.devices():
        if device in _told:
            continue
        address = core.slots_too_small(device)
        needed, shape = _needed.get(device, (0, ""))
        if not address and not shape:
            continue
        if device not in _short and not last:
            _short.add(device)
            continue
        _told.add(device)
        operand = next((p for p in parameters() if p.data_ptr() == address), None)
        of_operand = (b"", 0) if operand is None else (str(tuple(operand.shape)).encode(), tensors.extent(operand))
        if operand is not None or shape:
            core.budget_too_small(device, *of_operand, shape.encode(), needed)
