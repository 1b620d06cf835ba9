"""One process alone, which shares nothing with others: its model's data is placed in memory and on disk.

This happens only if a memory budget or static shares place the data (core.places), or if parameters become 16 bits
(CASTOR_PRECISION). Otherwise the script runs as in plain PyTorch."""
import weakref

from torch.utils.weak import WeakTensorKeyDictionary

from .. import core
from ..common import store, tensors
from ..device import adoption
from ..precision import masters
from . import layout, script_process


class Alone(script_process.Process):
    """The one rank of this run."""

    def __init__(self):
        super().__init__(0, 1)
        self.optimizers = weakref.WeakSet()
        self.sparse = WeakTensorKeyDictionary()  # the parameters that had sparse gradients

    def adopt(self, optimizer):
        if self.distributed or not store.active():
            return
        if layout.is_asked():
            raise core.Error("castor: CASTOR_TP and CASTOR_PP divide a model over ranks, and this is one process: start it by castor run --plugin hybrid "
                             "--nproc N, or leave them out")
        self.optimizers.add(optimizer)
        parameters = self.with_data(optimizer)
        adoption.adopt_masters(parameters)
        fresh = [p for p in parameters
                 if p.requires_grad and store.is_fresh(p) and not adoption.serves(p) and self._supports(p)]
        if not fresh or self.synchronizer is None and not masters.serves_one_process(fresh):
            return
        if self.synchronizer is None:
            self.synchronizer = script_process.Synchronizer(self)
        self.synchronizer.add(fresh)

    def keeps_sparse(self, p):
        if masters.of(p) is not None:
            return False
        self.sparse[p] = True
        self.say(f"a parameter of shape {tuple(p.shape)} stays in memory: its gradients are sparse")
        return True

    def moved(self, p):
        pass  # homes have it (device/); the store lets it go before the next pass or step

    def said_before_step(self, optimizer):
        if self.synchronizer is not None:
            self.synchronizer.let_go_of_moved()
        return []

    def _supports(self, p):
        if p in self.sparse:
            return False
        why = tensors.why_unsupported(p)
        if why:
            self.say(f"a parameter of shape {tuple(p.shape)} stays as it is: {why}")
        return not why

    def backward_begun(self, outputs, create_graph):
        if self.distributed or not store.active():
            return
        self.adopt_waiting()
        if self.synchronizer is None and not masters.has_any():
            return
        for optimizer in list(self.optimizers) if masters.has_any() else ():
            self.adopt(optimizer)  # what was frozen until now
        if create_graph and masters.dtype is not None:
            masters.refuse("backward(create_graph=True) makes gradients of gradients, which the 16-bit parameters and their masters "
                             "do not have")
        if self.synchronizer is None:
            return
        if create_graph:
            self.say("backward(create_graph=True): these gradients and the optimizer's states stay in memory, outside of the "
                     "budget", 1)
        self.synchronizer.let_go_of_moved()
        self.synchronizer.renew()
        self.synchronizer.expect()
        self.synchronizer.expecting = not create_graph

    def step_inside_backward(self, pairs):
        if self.synchronizer is None or self.distributed or not pairs:
            return
        if not self.synchronizer.expecting:
            raise core.Error("castor: an optimizer steps inside backward(create_graph=True), of which the budget has no gradients: step "
                             "after backward(), or run this script with CASTOR_MEMORY_BUDGET=0")
        self.synchronizer.settle(pairs)


def install():
    job = Alone()
    script_process.adopt_at_build(job)
    return job
