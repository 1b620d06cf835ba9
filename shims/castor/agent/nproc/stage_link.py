"""What the stages of a replica send each other (stages.py): words, and nestings of tensors."""
import pickle

import torch

from .. import core
from . import rows


class Hole:
    """A tensor, in what is sent ahead of it."""

    def __init__(self, tensor):
        self.shape, self.dtype, self.device, self.needs_gradient = tensor.shape, tensor.dtype, tensor.device.type, tensor.requires_grad


class Link:
    """Words, and tensors of the host, over one group, and tensors of devices over another. group: whose groups of devices (layout.py); in each of them what is
    sent and received has one order on both sides, so what crosses has groups of its own."""

    def __init__(self, layout, sent, group="stages"):
        self.layout, self.of_devices = layout, group
        self.sent = sent  # (work, tensor), which live until that was sent, whether or not a graph still does
        self.owed, self.awaited = set(), set()  # microbatches whose gradients the stage before waits for, and those that the stage behind will send
        self.early = {}  # microbatch: its gradients, which the stage behind has sent before this one asked for them

    def send(self, to, said, value=None):
        """said: anything that can be pickled; value: any nesting of tensors and of such things. Returns these tensors, in their order. Nobody waits."""
        tensors = []

        def hole(leaf, path):
            if not isinstance(leaf, torch.Tensor):
                return leaf
            tensors.append(leaf)
            return Hole(leaf)

        data = torch.frombuffer(bytearray(pickle.dumps((said, rows.mapped(value, hole)))), dtype=torch.uint8)
        self.sent[:] = [(work, tensor) for work, tensor in self.sent if not work.is_completed()]
        for several in ([torch.tensor([len(data)], device="cpu"), data], list(map(rows.resolved, tensors))):
            self.sent += self._begun(several, lambda backend, tensor: backend.send([tensor], to, 0))
        return tensors

    def receive(self, of):
        """(what was said, the nesting with a Hole for each tensor, the tensors)"""
        length, = self._received(of, [((1,), torch.int64, "cpu")])
        data, = self._received(of, [((int(length),), torch.uint8, "cpu")])
        said, nesting = pickle.loads(data.numpy().tobytes())
        holes = [leaf for leaf, _ in rows.leaves(nesting) if isinstance(leaf, Hole)]
        return said, nesting, self._received(of, [(hole.shape, hole.dtype, hole.device) for hole in holes])

    def _received(self, of, kinds):
        """kinds: (shape, dtype, type of device) of each tensor."""
        try:
            tensors = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype, device in kinds]
        except torch.OutOfMemoryError as error:  # what was sent would wait for this rank
            raise core.GroupError(f"castor: the device has no memory for what another stage sends: more ranks, or smaller batches, need less ({error})") from None
        for work, _ in self._begun(tensors, lambda backend, tensor: backend.recv([tensor], of, 0)):
            work.wait()
        return tensors

    def _begun(self, tensors, begin):
        """begin(backend, tensor): begins to send one, or to receive it. The works, each with what must live until it has ended; NCCL has one for all."""
        found = []
        for kind in {t.device.type: None for t in tensors}:
            backend = self.layout.group("stages" if kind == "cpu" else self.of_devices, kind)._get_backend(torch.device(kind))
            some = [t for t in tensors if t.device.type == kind and t.numel()]
            if backend.supports_coalescing and some:
                backend._start_coalescing()
                for tensor in some:
                    begin(backend, tensor)
                found.append((backend._end_coalescing(), some))
            else:
                found += [(begin(backend, tensor), tensor) for tensor in some]
        return found

    def gradients_of(self, of, number):
        """Those of a microbatch, by the stage behind, which may come to others first: a graph on a device and on the host has no order."""
        while number not in self.early:
            came, nesting, tensors = self.receive(of)
            self.early[came] = None if nesting is None else tensors
            self.awaited.discard(came)
        gradients = self.early.pop(number)
        if gradients is None:
            raise RuntimeError("the backward pass of the stage behind has failed")
        return gradients

    def abandon(self, stage):
        """A backward pass has failed on this one: its neighbours wait for no gradients, and send none that nobody takes."""
        for number in sorted(self.owed):
            self.send(stage - 1, number)
        self.owed.clear()
        while self.awaited:
            self.awaited.discard(self.receive(stage + 1)[0])

    def drain(self):
        for work, _ in self.sent:
            work.wait()
        self.sent.clear()


def filled(nesting, tensors):
    left = iter(tensors)
    return rows.mapped(nesting, lambda leaf, path: next(left) if isinstance(leaf, Hole) else leaf)
