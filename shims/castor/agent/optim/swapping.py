"""torch.utils.swap_tensors, which converts modules after torch.__future__.set_swap_module_params_on_conversion(True).

It refuses tensors with weak references, which entries and homes hold. Hooks stay with the parameter's old content, so it is hooked anew."""
import functools

from .. import core, patching
from ..backward import accumulation
from ..common import store
from ..device import adoption
from ..precision import masters


def _wrap(stock):
    @functools.wraps(stock)
    def swap_tensors(t1, t2):
        adoption.forget(t1, t2)
        held = [(t, store.entry_of(t)) for t in (t1, t2) if store.entry_of(t) is not None]
        shown = [entry for entry in store.entries() if any(entry.shown_grad() is t for t in (t1, t2))] if store.active() else []
        if not held and not shown:
            return stock(t1, t2)
        if masters.dtype is not None or accumulation.active():
            raise core.Error("castor: a parameter is swapped for another one (set_swap_module_params_on_conversion) after its "
                             "optimizer was built, which CASTOR_PRECISION and CASTOR_ACCUMULATE cannot follow: convert the "
                             "model before")
        for t, entry in held:
            entry.parameter = functools.partial(lambda t: t, t)
        for entry in shown:
            entry.shown = None
        try:
            result = stock(t1, t2)
        finally:
            for t, entry in held:
                entry.watch(t)
        for t, entry in held:
            t._post_accumulate_grad_hooks = None  # PyTorch would add to the old content's, and call none of them
            for synchronizer in sorted(entry.synchronizers, key=lambda s: s.number):
                synchronizer.hook(t, entry)
        return result

    return swap_tensors


def install():
    patching.replace("torch.utils.swap_tensors", _wrap)
