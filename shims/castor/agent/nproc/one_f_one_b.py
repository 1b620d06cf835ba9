"""1F1B under the plugin `hybrid`: a model's call that returns its loss runs the backward passes of its microbatches, too, each as soon as it can be, in the order
that the library computes (interpose/parallel/pipeline.h). So a stage keeps what few microbatches save, at most as many as there are stages.

The gradient that the script's backward() will begin with is not known within the call, and neither are the shares of the microbatches' losses, which depend on what
all of them count. A pass begins with the last call's gradient times what is known of the share; the script's backward() gets the sums over the microbatches, times
what that differs by. So the script must go back from the loss alone: Reached has seen that it did so after the last call.

In DDP scripts (members.py) a call has the batches of several ranks, each with a loss of its own. What a share is found to be multiplies the sum of a batch when it
is complete; what the gradients differ by from the last call's must be one number for all of them."""
import math
import typing

import torch

from .. import core
from ..common import graph, tensors
from ..process import events
from . import rows, stage_link

_ROUNDING = 1e-6  # of gradients that a script's ranks compute in single precision

class Reached:
    """From which results of a call the script's backward passes went back. gradients: {path: the gradient of a loss; True: of another result}"""

    def __init__(self):
        self.gradients = {}

    def seen(self, result):
        """The result of a call."""
        made = {}  # which may hold one tensor several times

        def watched(leaf, path):
            if not isinstance(leaf, torch.Tensor) or leaf.grad_fn is None:
                return leaf
            if id(leaf) not in made:
                made[id(leaf)] = _Seen.apply(leaf, self, path)
            return made[id(leaf)]

        return rows.mapped(result, watched)

    @property
    def loss(self):
        """The path of the only result that was gone back from, if it is one number."""
        found = list(self.gradients.items())
        return found[0][0] if len(found) == 1 and found[0][1] is not True else None


class _Seen(torch.autograd.Function):
    """A result, of which a gradient tells that the script has used it."""

    @staticmethod
    def forward(ctx, tensor, reached, path):
        ctx.reached, ctx.path = reached, path
        return tensor.detach()

    @staticmethod
    def backward(ctx, gradient):
        ctx.reached.gradients[ctx.path] = True if gradient.dim() else gradient.detach()
        return gradient, None, None


class OfBatch(typing.NamedTuple):
    """A batch, whose microbatches follow each other. microbatches: what weighs their losses (microbatches.py); gradient: of the loss, in the last call's backward
    pass; path: of the loss, in the results of the call."""

    microbatches: typing.Any
    gradient: typing.Any
    path: str


class Passes:
    """The backward passes of one call's microbatches on this stage. inputs: parameters. batches: an OfBatch each. hooked: a hook makes outputs of layers require
    gradients, which are nobody's, where what comes before is frozen."""

    def __init__(self, layout, sent, inputs, batches, hooked):
        self.layout, self.link, self.inputs = layout, stage_link.Link(layout, sent, "stages back"), inputs
        self._batches, self._hooked = batches, hooked
        self._of = [(batch, number) for batch in batches for number in range(len(batch.microbatches.parts))]
        self._begins, self._ends = {}, {}  # microbatch: the tensors that it begins with; what it ends with, and the gradients of that where they are known
        self._own, self._total = _Sums(inputs), _Sums(inputs)  # of the batch that is gone back through; of all before it
        self._begin_with = {}  # path of a loss: what one of weight 1 begins with, for each 1 of its share

    def begins(self, number, arrived):
        """The tensors that a microbatch begins with, of which the stage before waits for gradients."""
        leaves = self._begins[number] = [t.detach().requires_grad_() for t in arrived]
        return leaves

    def ends(self, number, outputs):
        """The stage behind sends their gradients."""
        self._ends[number] = outputs, None

    def ends_with_loss(self, number, result):
        """Returns the result without its graph."""
        batch, place = self._of[number]
        loss, weight = batch.microbatches.weigh(place, result)
        if batch.path not in self._begin_with:
            last = torch.as_tensor(batch.gradient).to(loss.device, loss.dtype)
            self._begin_with[batch.path] = torch.where(torch.isfinite(last) & (last != 0), last, torch.ones_like(last))
        self._ends[number] = [loss], [self._begin_with[batch.path] * batch.microbatches.guess * weight if weight else None]
        return rows.mapped(result, lambda leaf, path: leaf.detach().requires_grad_() if isinstance(leaf, torch.Tensor) and leaf.requires_grad else leaf)

    def go_back(self, number, why):
        """The pass of a microbatch. why: the call has failed; returns why it has."""
        (outputs, gradients), arrived, factor = self._ends.pop(number, ((), None)), self._begins.pop(number, []), None
        if not self.layout.is_last:
            (failed, factor), nesting, tensors = self.link.receive(self.layout.stage + 1)
            why, gradients = why or failed, stage_link.filled(nesting, tensors)
        made = [None] * (len(self.inputs) + len(arrived))
        pairs = [pair for pair in zip(outputs, gradients or ()) if pair[1] is not None]
        if not why:
            try:
                if pairs:
                    made = self._made(*zip(*pairs), arrived)
                if self.layout.is_last:
                    factor = self._factor_after(number)
            except core.GroupError:
                raise
            except rows.Apart as error:
                why = str(error)
            except Exception as error:  # of a checkpoint that asks for the script's own pass, perhaps
                why = f"its backward pass within the call raises {type(error).__name__}: {error}"
        self._own.add(made[:len(self.inputs)])
        if self.layout.stage:
            self.link.send(self.layout.stage - 1, (why, factor), made[len(self.inputs):])
        if factor is not None and not why:
            self._own.multiply(factor)
            self._total.take(self._own)
        return why

    def _made(self, outputs, gradients, arrived):
        others = []  # behind which a reentrant checkpoint's parameters may be, that autograd does not see
        if self._hooked or not self._total.any and not self._own.any:  # the first one
            others = graph.leaves_but(outputs, (*self.inputs, *arrived))
            if others and not self._hooked:
                raise RuntimeError("a gradient comes to a tensor that is no parameter of it")
        made, nested = events.run_unheard(outputs, gradients, [*self.inputs, *arrived, *others], keeps=False)
        if nested:
            raise RuntimeError("a function of the script's runs a backward pass of its own")
        return made[:len(made) - len(others)]

    def _factor_after(self, number):
        """What the sum of a batch is to be multiplied with, after its last microbatch; None: others follow."""
        batch, place = self._of[number]
        return batch.microbatches.factor / batch.microbatches.guess if place == len(batch.microbatches.parts) - 1 else None

    @property
    def ratios(self):
        """On the last stage: what the sums are to be multiplied with for each 1 of the gradient of each batch's loss."""
        return [1 / self._begin_with[batch.path] for batch in self._batches]

    def given(self, results, ratios, any_leaf):
        """The results, as all stages have them, of the tensors that require gradients; ratios: those of the last stage. Their backward pass gives the sums."""
        losses = {path: leaf for leaf, path in rows.leaves(results)}
        needing = rows.needing_gradients(results)
        sums = [_Sum.apply(p, total) for p, total in zip(self.inputs, self._total.tensors) if total is not None]
        self._total = None
        places = [next(number for number, leaf in enumerate(needing) if leaf is losses[batch.path]) for batch in self._batches]
        ratios = [ratio * self.layout.stages for ratio in ratios]
        return rows.exchanged(results, needing, _Given.apply(any_leaf, ratios, places, len(needing), *needing, *sums))


class _Sums:
    """Gradients of `inputs`, added up. Of a tensor that was added to none yet, autograd may hold others' gradients in the same memory."""

    def __init__(self, inputs):
        self.tensors, self._is_own = [None] * len(inputs), [False] * len(inputs)

    @property
    def any(self):
        return any(tensor is not None for tensor in self.tensors)

    def add(self, made):
        for number, gradient in enumerate(made):
            if gradient is not None:
                self._add(number, gradient, False)

    def take(self, other):
        """All that the other one has."""
        for number, tensor in enumerate(other.tensors):
            if tensor is not None:
                self._add(number, tensor, other._is_own[number])
                other.tensors[number] = None

    def _add(self, number, gradient, is_own):
        tensor = self.tensors[number]
        if tensor is None:
            self.tensors[number], self._is_own[number] = gradient, is_own
        elif self._is_own[number]:
            tensor.add_(gradient)
        else:
            self.tensors[number], self._is_own[number] = tensor + gradient, True

    def multiply(self, factor):
        for number, tensor in enumerate(self.tensors):
            if factor != 1 and tensor is not None:
                self.tensors[number], self._is_own[number] = tensor.mul_(factor) if self._is_own[number] else tensor * factor, True


class _Sum(torch.autograd.Function):
    """A parameter's gradient, summed over the microbatches. A number of no meaning, whose gradient that is multiplied with."""

    @staticmethod
    def forward(ctx, parameter, total):
        ctx.save_for_backward(total)
        return torch.zeros((), dtype=torch.float64, device=total.device)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, factor):
        total, = ctx.saved_tensors
        return total * factor.to(total.dtype), None


class _Given(torch.autograd.Function):
    """The results, of which some are the losses; behind them the sums."""

    @staticmethod
    def forward(ctx, any_leaf, ratios, places, count, *tensors):
        ctx.set_materialize_grads(False)
        ctx.ratios, ctx.places, ctx.sums = ratios, places, [t.device for t in tensors[count:]]
        return tuple(t.detach() for t in tensors[:count])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *gradients):
        if any(gradient is not None for place, gradient in enumerate(gradients) if place not in ctx.places):
            raise core.GroupError("castor: the script goes back from more than the loss that the model returns, which it did not do after the calls before, so the "
                                  "model's gradients were made within the call: set CASTOR_MICROBATCHES to CASTOR_PP or less")
        losses = [gradients[place] for place in ctx.places]
        found = [loss.double() * ratio.to(loss.device) for loss, ratio in zip(losses, ctx.ratios) if loss is not None]
        if not found:
            return (None,) * (4 + len(gradients) + len(ctx.sums))
        if len(found) < len(losses) or tensors.holds_numbers(found[0]) and not are_one(list(map(float, found))):
            raise core.GroupError("castor: the losses of the ranks that have a model together weigh otherwise beside each other than in the calls before, so the "
                                  "model's gradients, which were made within the call, are wrong: set CASTOR_MICROBATCHES to CASTOR_PP or less")
        return (None, None, None, None, *(None for _ in gradients), *(found[0].to(device) for device in ctx.sums))


def are_one(values):
    """Whether they are one number, but for rounding; what is not finite is it if all are so (a loss scale that is too large)."""
    if not all(map(math.isfinite, values)):
        return not any(map(math.isfinite, values))
    return max(values) - min(values) <= _ROUNDING * max(map(abs, values))
