"""Pipeline parallelism under the plugin `hybrid`: the longest chain of a model's layers is divided over stages, inside of the model's call.

Each stage runs the model's own forward for the rows of one microbatch after another. Up to its first layer it computes what all compute, and takes for that
layer's input what the stage before has sent; after its last one it sends, and goes on with the next microbatch. The last stage goes on to the end, and
gives the results to all. In the backward pass a stage's graph begins with gradients that the stage behind it sends. Random numbers are those of one
process: the generators' states travel with the activations, and each microbatch draws for the whole batch.

What a forward does with outputs of layers that its stage does not have is an error, which all stages get (shardformer/_stages.py)."""
import contextlib
import functools
import pickle
import re
import weakref

import torch

from .. import core
from ..device_ranks import entries
from . import rows, streams


class Hole:
    """A tensor, in what is sent ahead of it."""

    def __init__(self, tensor):
        self.shape, self.dtype, self.device, self.needs_gradient = tensor.shape, tensor.dtype, tensor.device.type, tensor.requires_grad


class _Link:
    """What the stages of a replica send each other: words, and tensors of the host, over one group, and tensors of devices over another."""

    def __init__(self, layout, sent):
        self.layout = layout
        self.sent = sent  # (work, tensor), which live until that was sent, whether or not a graph still does
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
        length, = self._received(of, [torch.empty(1, dtype=torch.int64, device="cpu")])
        data, = self._received(of, [torch.empty(int(length), dtype=torch.uint8, device="cpu")])
        said, nesting = pickle.loads(data.numpy().tobytes())
        holes = [leaf for leaf, _ in rows.leaves(nesting) if isinstance(leaf, Hole)]
        return said, nesting, self._received(of, [torch.empty(hole.shape, dtype=hole.dtype, device=hole.device) for hole in holes])

    def _received(self, of, tensors):
        for work, _ in self._begun(tensors, lambda backend, tensor: backend.recv([tensor], of, 0)):
            work.wait()
        return tensors

    def _begun(self, tensors, begin):
        """begin(backend, tensor): begins to send one, or to receive it. The works, each with what must live until it has ended; NCCL has one for all."""
        found = []
        for kind in {t.device.type: None for t in tensors}:
            backend = self.layout.group("stages", kind)._get_backend(torch.device(kind))
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
            came, _, self.early[came] = self.receive(of)
        return self.early.pop(number)

    def drain(self):
        for work, _ in self.sent:
            work.wait()
        self.sent.clear()


def filled(nesting, tensors):
    left = iter(tensors)
    return rows.mapped(nesting, lambda leaf, path: next(left) if isinstance(leaf, Hole) else leaf)


def gives_as_much_without_reentry(arguments):
    """Of a reentrant checkpoint that gets these arguments in a stage, which computes without a graph, and so cannot begin with what arrives from the stage
    before: whether the other kind gives gradients to the same tensors. (The reentrant one gives none where no argument requires one, or one inside of a list does.)"""
    from ...shardformer import _stages

    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    inside = [leaf for a in arguments if not isinstance(a, torch.Tensor) for leaf, _ in rows.leaves(a) if isinstance(leaf, torch.Tensor)]
    return any(t.requires_grad or isinstance(t, _stages._Elsewhere) for t in tensors) and not any(t.requires_grad for t in inside)


class _Arrived(torch.autograd.Function):
    """What the stage before has sent; its gradients go back there."""

    @staticmethod
    def forward(ctx, link, of, number, any_leaf, *tensors):
        ctx.link, ctx.of, ctx.number = link, of, number
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *gradients):
        ctx.link.send(ctx.of, ctx.number, list(gradients))
        return (None, None, None, None, *(None for _ in gradients))


class _Handed(torch.autograd.Function):
    """What this stage has sent to the next one. A number of no meaning, from which a backward pass goes on to the gradients that come from there."""

    @staticmethod
    def forward(ctx, link, to, number, *tensors):
        ctx.link, ctx.to, ctx.number = link, to, number
        return torch.zeros((), device=tensors[0].device)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, _):
        return (None, None, None, *ctx.link.gradients_of(ctx.to, ctx.number))


class _Given(torch.autograd.Function):
    """The results, which the last stage has sent; behind them, of each of this stage's microbatches what _Handed has given."""

    @staticmethod
    def forward(ctx, any_leaf, count, *tensors):
        ctx.handed = tensors[count:]
        return tuple(t.view_as(t) for t in tensors[:count])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *gradients):
        return (None, None, *(None for _ in gradients), *(torch.zeros_like(t) for t in ctx.handed))


class _Counted(torch.autograd.Function):
    """The results, on the last stage: one of as many ranks has made their gradients."""

    @staticmethod
    def forward(ctx, times, *tensors):
        ctx.times = times
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *gradients):
        return (None, *(g * ctx.times for g in gradients))


class Stages:
    def __init__(self, layout):
        self.layout = layout
        self._sent = []  # of _Link
        self.leaf = torch.zeros((), requires_grad=True, device="cpu")  # where each stage's graph ends: a pass goes through what was sent to get there
        self._chains = weakref.WeakKeyDictionary()  # the outermost module: (its chain's layers, the first layer of each stage and the end)

    def prepare(self, module):
        """Raises Apart where its chain, as it is now, is not divided."""
        layers, bounds = self._chains[module] = self._chain_of(module)
        for begin, end in zip(bounds, bounds[1:]) if torch.is_grad_enabled() else ():
            if not any(p.requires_grad for layer in layers[begin:end] for p in layer.parameters()):
                raise rows.Apart(f"has nothing to train in layers {begin} to {end - 1} of its chain, which are a stage")

    def _chain_of(self, module):
        from ...shardformer import _stages

        try:
            _, children = _stages.longest_chain(module)
            layers = [layer for _, layer in children]
            if len(set(map(id, layers))) < len(layers) or any("forward" in layer.__dict__ for layer in layers):
                raise ValueError("a layer stands several times in its chain, or has a forward of its own")
            return layers, _stages.bounds_of(layers, self.layout.stages)
        except ValueError as error:
            raise rows.Apart(f"has no stages: {str(error).removeprefix('castor: ')}") from None

    def place(self, module):
        """Before its parameters are adopted on devices: those of a layer are owned by a rank of its stage, and away from the ranks of others."""
        try:
            layers, bounds = self._chain_of(module)
        except rows.Apart:  # it is computed whole
            return
        inside = {id(each) for layer in layers for each in layer.modules()}
        elsewhere = {id(p) for each in module.modules() if id(each) not in inside for p in each._parameters.values()}
        found = {}  # id: (parameter, its owner, stages that compute with it)
        for stage, (begin, end) in enumerate(zip(bounds, bounds[1:])):
            ranks = self.layout.ranks_of(stage)
            for number, layer in enumerate(layers[begin:end]):
                for p in layer.parameters():
                    found.setdefault(id(p), (p, ranks[number * len(ranks) // (end - begin)], set()))[2].add(stage)
        for p, owner, of in found.values():
            if id(p) not in elsewhere:
                entries.place(p, owner, self.layout.stage not in of)

    def run(self, module, microbatches, join, own=-1):
        """The results of a call, the same on all ranks of a replica. microbatches: (call(within=): the model's forward, in a context; the generators' states that it
        begins with) each; join(results): of the results of each microbatch those of all; own: the microbatch with whose states this rank goes on. What a stage
        raises, all raise as Apart."""
        from ...shardformer import _stages

        layout, (layers, bounds) = self.layout, self._chains[module]
        link = _Link(layout, self._sent)
        begin, end = bounds[layout.stage], bounds[layout.stage + 1]
        results, ended, handed, why = [], [], [], ""
        for number, (call, began) in enumerate(microbatches):
            given, states = None, began
            if layout.stage:
                (failed, states), given, tensors = link.receive(layout.stage - 1)
                why = why or failed
                given = None if failed else filled(given, self._arrived(link, number, given, tensors))
            if not why:
                try:
                    streams.restore(began)
                    passing = _Pass(_stages, begin, end, layout.is_last, given, states)
                    result = passing.result_of(functools.partial(call, within=functools.partial(passing.through, layers)))
                except core.GroupError:
                    raise
                except Exception as error:  # of the forward, on this stage: the others wait for it
                    why = re.split(": (?:such )?a model that|: such a model|; use pp_size", f"{type(error).__name__}: {error}".removeprefix("RuntimeError: castor: "))[0]
            if layout.is_last:
                results.append(None if why else result)
                ended.append(streams.states())
            elif why:
                link.send(layout.stage + 1, (why, None))
            else:
                sent = [t for t in link.send(layout.stage + 1, ("", streams.states()), result) if t.requires_grad]
                handed += [_Handed.apply(link, layout.stage + 1, number, *sent)] if sent else []
        return self._shared(link, why, results, ended, handed, join, own)

    def _arrived(self, link, number, nesting, tensors):
        holes = [each for each, _ in rows.leaves(nesting) if isinstance(each, Hole)]
        needed = [n for n, hole in enumerate(holes) if hole.needs_gradient]
        if needed and torch.is_grad_enabled():
            for n, t in zip(needed, _Arrived.apply(link, self.layout.stage - 1, number, self.leaf, *(tensors[n] for n in needed))):
                tensors[n] = t
        return tensors

    def _shared(self, link, why, results, ended, handed, join, own):
        """The last stage gives the results to the others."""
        layout = self.layout
        if layout.is_last:
            whole = None
            if not why:
                try:
                    whole = join(results)
                except Exception as error:  # the others wait
                    why = str(error).removeprefix("castor: ")
            for stage in range(layout.stages - 1):
                link.send(stage, (why, ended), whole)
            link.drain()
        else:
            link.drain()
            (why, ended), nesting, tensors = link.receive(layout.stages - 1)
        if why:
            raise rows.Apart(f"has no stages: {why}")
        streams.restore(ended[own])
        if layout.is_last:
            needing = [leaf for leaf, _ in rows.leaves(whole) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
            made = dict(zip(map(id, needing), _Counted.apply(float(layout.stages), *needing))) if needing else {}
            return rows.mapped(whole, lambda leaf, path: made.get(id(leaf), leaf))
        holes = [leaf for leaf, _ in rows.leaves(nesting) if isinstance(leaf, Hole)]
        needed = [n for n, hole in enumerate(holes) if hole.needs_gradient]
        if needed and torch.is_grad_enabled():
            for n, t in zip(needed, _Given.apply(self.leaf, len(needed), *(tensors[n] for n in needed), *handed)):
                tensors[n] = t
        return filled(nesting, tensors)


class _Pass:
    """One microbatch's forward of this stage."""

    def __init__(self, stages, begin, end, last, given, states):
        self._ended, self._run = stages._Ended, stages._Run(begin, end, last, given)
        self._begin, self._states, self._trains = begin, states, torch.is_grad_enabled()

    @contextlib.contextmanager
    def through(self, layers):
        with contextlib.ExitStack() as undone:
            for place, layer in enumerate(layers):
                before = layer.__dict__.pop("forward", None)  # of a divided layer (divided_layers.py)
                undone.callback(functools.partial(layer.__dict__.__setitem__, "forward", before) if before else functools.partial(layer.__dict__.pop, "forward"))
                layer.__dict__["forward"] = self._of(place, before or layer.forward)
            yield

    def _of(self, place, forward):
        def layer(*args, **kwargs):
            if place == self._begin - 1:  # before what a checkpoint around the next layer keeps of them
                streams.restore(self._states)
            if self._trains and not torch.is_grad_enabled():
                raise RuntimeError(f"calls layer {place} of its chain without gradients, as a checkpoint of its own may do")
            return self._run.layer(place, lambda: forward(*args, **kwargs))

        return layer

    def result_of(self, call):
        try:
            result = call()
        except self._ended as ended:
            return ended.args[0]
        if not self._run.last or self._run.next < self._run.end:
            raise RuntimeError("its forward ends before the last layer of its chain")
        return result

