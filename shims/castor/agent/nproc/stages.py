"""Pipeline parallelism under the plugin `hybrid`: the longest chain of a model's layers is divided over stages, inside of the model's call.

Each stage runs the model's own forward for the rows of one microbatch after another. Up to its first layer it computes what all compute, and takes for that
layer's input what the stage before has sent; after its last one it sends, and goes on with the next microbatch. The last stage goes on to the end, and
gives the results to all. In the backward pass a stage's graph begins with gradients that the stage behind it sends. Random numbers are those of one
process: the generators' states travel with the activations, and each microbatch draws for the whole batch.

What a forward does with outputs of layers that its stage does not have is an error, which all stages get (shardformer/_stages.py)."""
import contextlib
import functools
import re
import weakref

import torch

from ... import parallel
from .. import core
from ..device_ranks import entries
from . import backward_trial, one_f_one_b, rows, streams
from .stage_link import Hole, Link, filled


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
        link.owed.add(number)
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *gradients):
        ctx.link.owed.discard(ctx.number)
        ctx.link.send(ctx.of, ctx.number, list(gradients))
        return (None, None, None, None, *(None for _ in gradients))


class _Handed(torch.autograd.Function):
    """What this stage has sent to the next one. A number of no meaning, from which a backward pass goes on to the gradients that come from there."""

    @staticmethod
    def forward(ctx, link, to, number, *tensors):
        ctx.link, ctx.to, ctx.number = link, to, number
        link.awaited.add(number)
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
        self._link = None  # of the last call
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

    def abandon(self):
        """The backward pass of the last call has failed on this stage."""
        if self._link is not None:
            self._link.abandon(self.layout.stage)

    def passes(self, module, batches, hooked):
        """Those of a call, for run()."""
        return one_f_one_b.Passes(self.layout, self._sent, backward_trial.inputs_of(module.named_modules(), ()), batches, hooked)

    def run(self, module, microbatches, join, own=-1, passes=None):
        """The results of a call, the same on all ranks of a replica. microbatches: (call(within=): the model's forward, in a context; the generators' states that it
        begins with) each; join(results): of the results of each microbatch those of all; own: the microbatch with whose states this rank goes on; passes: the
        backward passes that are run within the call (one_f_one_b.py), None: none are. What a stage raises, all raise as Apart."""
        call = _Call(self.layout, self._sent, self.leaf, *self._chains[module], passes)
        self._link = call.link
        if passes is None:
            for number, microbatch in enumerate(microbatches):
                call.forward(number, *microbatch)
        else:
            for kind, number, _ in parallel.operations(core.PIPELINE_1F1B, self.layout.stages, len(microbatches), 1, self.layout.stage):
                if kind == core.PASS_FORWARD:
                    call.forward(number, *microbatches[number])
                else:
                    call.why = passes.go_back(number, call.why)
        return call.results_of_all(join, own)


class _Call:
    """A model's call on this stage. why: what some stage has raised."""

    def __init__(self, layout, sent, leaf, layers, bounds, passes):
        self.layout, self.link, self.leaf, self.layers, self.passes = layout, Link(layout, sent), leaf, layers, passes
        self.begin, self.end = bounds[layout.stage], bounds[layout.stage + 1]
        self.results, self.ended, self.handed, self.why = [], [], [], ""

    def forward(self, number, call, began):
        """Of a microbatch."""
        from ...shardformer import _stages

        layout, given, states, result = self.layout, None, began, None
        if layout.stage:
            (failed, states), given, tensors = self.link.receive(layout.stage - 1)
            self.why = self.why or failed
            given = None if failed else filled(given, self._arrived(number, given, tensors))
        if not self.why:
            try:
                streams.restore(began)
                passing = _Pass(_stages, self.begin, self.end, layout.is_last, given, states)
                result = passing.result_of(functools.partial(call, within=functools.partial(passing.through, self.layers)))
                if layout.is_last and self.passes is not None:
                    result = self.passes.ends_with_loss(number, result)
            except core.GroupError:
                raise
            except rows.Apart as error:
                self.why = str(error)
            except Exception as error:  # of the forward, on this stage: the others wait for it
                self.why = re.split(": (?:such )?a model that|: such a model|; use pp_size", f"{type(error).__name__}: {error}".removeprefix("RuntimeError: castor: "))[0]
        if layout.is_last:
            self.results.append(None if self.why else result)
            self.ended.append(streams.states())
        elif self.why:
            self.link.send(layout.stage + 1, (self.why, None))
        else:
            sent = [t for t in self.link.send(layout.stage + 1, ("", streams.states()), result) if t.requires_grad]
            if self.passes is not None:
                self.passes.ends(number, sent)
            elif sent:
                self.handed.append(_Handed.apply(self.link, layout.stage + 1, number, *sent))

    def _arrived(self, number, nesting, tensors):
        needed = _needing_gradients(nesting)
        if needed:
            some = [tensors[n] for n in needed]
            arrived = _Arrived.apply(self.link, self.layout.stage - 1, number, self.leaf, *some) if self.passes is None else self.passes.begins(number, some)
            for n, t in zip(needed, arrived):
                tensors[n] = t
        return tensors

    def results_of_all(self, join, own):
        """The last stage gives the results to the others."""
        layout, link, ratios = self.layout, self.link, None
        if layout.is_last:
            whole = None
            if not self.why:
                try:
                    whole, ratios = join(self.results), self.passes and self.passes.ratios
                except Exception as error:  # the others wait
                    self.why = str(error).removeprefix("castor: ")
            for stage in range(layout.stages - 1):
                link.send(stage, (self.why, self.ended), (whole, ratios))
            link.drain()
        else:
            link.drain()
            (why, self.ended), nesting, tensors = link.receive(layout.stages - 1)
            self.why = self.why or why
        if self.why:
            raise rows.Apart(f"has no stages: {self.why}")
        streams.restore(self.ended[own])
        if self.passes is not None:
            if not layout.is_last:
                for n in _needing_gradients(nesting):
                    tensors[n].requires_grad_()
                whole, ratios = filled(nesting, tensors)
            return self.passes.given(whole, ratios, self.leaf)
        if layout.is_last:
            needing = rows.needing_gradients(whole)
            return rows.exchanged(whole, needing, _Counted.apply(float(layout.stages), *needing)) if needing else whole
        needed = _needing_gradients(nesting)
        if needed:
            for n, t in zip(needed, _Given.apply(self.leaf, len(needed), *(tensors[n] for n in needed), *self.handed)):
                tensors[n] = t
        return filled(nesting, tensors)[0]


def _needing_gradients(nesting):
    """Which of the tensors that were sent with a nesting require gradients here, by their places."""
    holes = [each for each, _ in rows.leaves(nesting) if isinstance(each, Hole)]
    return [n for n, hole in enumerate(holes) if hole.needs_gradient] if torch.is_grad_enabled() else []


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

