"""1F1B under the plugin `hybrid`: a model's call that returns its loss runs the backward passes of its microbatches, too, each as soon as it can be, in the order
that the library computes (interpose/parallel/pipeline.h). So a stage keeps what few microbatches save, at most as many as there are stages.

The gradient that the script's backward() will begin with is not known within the call, and neither are the shares of the microbatches' losses, which depend on what
all of them count. A pass begins with the last call's gradient times what is known of the share; the script's backward() gets the sums over the microbatches, times
what that differs by. So the script must go back from the loss alone: Reached has seen that it did so after the last call."""
import torch

from .. import core
from ..common import graph
from ..process import events
from . import rows, stage_link


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


class Passes:
    """The backward passes of one call's microbatches on this stage. inputs: parameters. microbatches: what weighs their losses (microbatches.py). gradient: of the
    loss, in the last call's backward pass. hooked: a hook makes outputs of layers require gradients, which are nobody's, where what comes before is frozen."""

    def __init__(self, layout, sent, inputs, microbatches, gradient, hooked):
        self.layout, self.link, self.inputs = layout, stage_link.Link(layout, sent, "stages back"), inputs
        self._microbatches, self._gradient, self._hooked = microbatches, gradient, hooked
        self._begins, self._ends = {}, {}  # microbatch: the tensors that it begins with; what it ends with, and the gradients of that where they are known
        self._sums, self._times = [None] * len(inputs), [0] * len(inputs)
        self._begins_with = None  # what a loss of weight 1 begins with

    def begins(self, number, arrived):
        """The tensors that a microbatch begins with, of which the stage before waits for gradients."""
        leaves = self._begins[number] = [t.detach().requires_grad_() for t in arrived]
        return leaves

    def ends(self, number, tensors):
        """tensors: the stage behind sends their gradients."""
        self._ends[number] = tensors, None

    def ends_with_loss(self, number, result):
        """Returns the result without its graph."""
        loss, weight = self._microbatches.weigh(number, result)
        if self._begins_with is None:
            last = self._gradient.to(loss.device, loss.dtype)
            self._begins_with = torch.where(torch.isfinite(last) & (last != 0), last, torch.ones_like(last)) * self._microbatches.guess
        self._ends[number] = [loss], [self._begins_with * weight if weight else None]
        return rows.mapped(result, lambda leaf, path: leaf.detach().requires_grad_() if isinstance(leaf, torch.Tensor) and leaf.requires_grad else leaf)

    def go_back(self, number, why):
        """The pass of a microbatch. why: the call has failed; returns why it has."""
        (outputs, gradients), arrived = self._ends.pop(number, ((), None)), self._begins.pop(number, [])
        if not self.layout.is_last:
            failed, nesting, tensors = self.link.receive(self.layout.stage + 1)
            why, gradients = why or failed, stage_link.filled(nesting, tensors)
        made = [None] * (len(self.inputs) + len(arrived))
        pairs = [pair for pair in zip(outputs, gradients or ()) if pair[1] is not None]
        if pairs and not why:
            try:
                made = self._made(*zip(*pairs), arrived)
            except core.GroupError:
                raise
            except Exception as error:  # of a checkpoint that asks for the script's own pass, perhaps
                why = f"its backward pass within the call raises {type(error).__name__}: {error}"
        self._add(made[:len(self.inputs)])
        if self.layout.stage:
            self.link.send(self.layout.stage - 1, why, made[len(self.inputs):])
        return why

    def _made(self, outputs, gradients, arrived):
        others = []  # behind which a reentrant checkpoint's parameters may be, that autograd does not see
        if self._hooked or not any(self._times):  # the first one
            others = graph.leaves_but(outputs, (*self.inputs, *arrived))
            if others and not self._hooked:
                raise RuntimeError("a gradient comes to a tensor that is no parameter of it")
        made, nested = events.run_unheard(outputs, gradients, [*self.inputs, *arrived, *others], keeps=False)
        if nested:
            raise RuntimeError("a function of the script's runs a backward pass of its own")
        return made[:len(made) - len(others)]

    def _add(self, made):
        for number, gradient in enumerate(made):
            if gradient is not None:
                self._times[number] += 1
                if self._times[number] == 1:
                    self._sums[number] = gradient  # which may be another's, too
                elif self._times[number] == 2:
                    self._sums[number] = self._sums[number] + gradient
                else:
                    self._sums[number].add_(gradient)

    @property
    def ratio(self):
        """On the last stage, when the results are joined: what the sums are to be multiplied with for each 1 of the whole loss's gradient."""
        return self._microbatches.factor / self._begins_with

    def given(self, results, ratio, any_leaf):
        """The results, as all stages have them, of the tensors that require gradients; ratio: that of the last stage. Their backward pass gives the sums."""
        of_loss = next(leaf for leaf, path in rows.leaves(results) if path == self._microbatches.loss)
        needing = rows.needing_gradients(results)
        sums = [_Sum.apply(p, total) for p, total in zip(self.inputs, self._sums) if total is not None]
        self._sums = None
        place = next(number for number, leaf in enumerate(needing) if leaf is of_loss)
        return rows.exchanged(results, needing, _Given.apply(any_leaf, ratio * self.layout.stages, place, len(needing), *needing, *sums))


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
    """The results, of which one is the loss; behind it the sums."""

    @staticmethod
    def forward(ctx, any_leaf, ratio, place, count, *tensors):
        ctx.set_materialize_grads(False)
        ctx.ratio, ctx.place, ctx.sums = ratio, place, [t.device for t in tensors[count:]]
        return tuple(t.detach() for t in tensors[:count])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *gradients):
        if any(gradient is not None for place, gradient in enumerate(gradients) if place != ctx.place):
            raise core.GroupError("castor: the script goes back from more than the loss that the model returns, which it did not do after the calls before, so the "
                                  "model's gradients were made within the call: set CASTOR_MICROBATCHES to CASTOR_PP or less")
        loss = gradients[ctx.place]
        factors = [None if loss is None else (loss.double() * ctx.ratio.to(loss.device)).to(device) for device in ctx.sums]
        return (None, None, None, None, *(None for _ in gradients), *factors)
