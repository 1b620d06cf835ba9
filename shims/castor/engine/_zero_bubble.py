"""The zero-bubble schedule: a backward is two passes, of which the second can wait (interpose/parallel/pipeline.h)."""
import torch
from torch.utils._pytree import tree_leaves

from .. import parallel
from ..agent import core
from ..utils.optimizer_wrapper import WrappedOptimizer
from ._pipeline_schedule import PipelineSchedule
from ._split_backward import SplitBackward, splits

__all__ = ["ZeroBubblePipelineSchedule"]


class ZeroBubblePipelineSchedule(PipelineSchedule):
    """PipelineSchedule with the order ZB-H1: the gradient of a stage's input goes to the stage before as soon as it is there, and the
    parameters get theirs in a pass of their own, later, where other stages would wait. At most min(S, M) microbatches of a stage hold
    activations.

    Results are PipelineSchedule's. The gradients of parameters are added up in the order of the microbatches, and their hooks run as in a
    plain backward. Operators with parameters run in both passes, each time for the gradients of that pass, and so do hooks of what they give.

    A backward that must not run twice is made at once, as a whole: of a graph that holds a torch.autograd.Function (reentrant checkpoints,
    compiled functions and sharded parameters are such), and that of an optimizer with a backward of its own."""

    def _run(self, engine, groups, device, forward_only, returned, loss):
        passing = self._passes(groups, groups.stages, device, forward_only, split=True)
        link = self._link(groups, device, groups.stage, groups.stages)
        first, last = groups.stage == 0, groups.stage == groups.stages - 1
        kept = {}  # microbatch: (input, output), until the input's backward
        waiting = {}  # microbatch: the second pass
        for kind, microbatch, _ in parallel.operations(core.PIPELINE_ZERO_BUBBLE, groups.stages, self.num_microbatches, 1, groups.stage):
            if kind == core.PASS_FORWARD:
                given = None if first else link.receive_forward()
                with passing(kind, microbatch, groups.stage):
                    output = self.forward_step(engine, given, returned, returned is not None, loss)
                if not last:
                    link.send_forward(output, microbatch)
                if not forward_only:
                    kept[microbatch] = given, output
            elif forward_only:
                continue
            elif kind == core.PASS_BACKWARD_INPUT:
                given, output = kept.pop(microbatch)
                received = None if last else link.receive_backward()
                with passing(kind, microbatch, groups.stage):
                    gradient, waiting[microbatch] = self.backward_input_step(engine, given, output, received)
                if not first:
                    link.send_backward(gradient if isinstance(gradient, list) else [gradient])
                del given, output, gradient
            else:
                with passing(kind, microbatch, groups.stage):
                    self.backward_weight_step(engine, waiting.pop(microbatch))
        link.finish()

    def backward_input_step(self, engine, input_tensor, output_tensor, output_tensor_grad):
        """backward_step() for the gradients of the input alone. Returns them, and what backward_weight_step() needs."""
        inputs = [leaf for leaf in tree_leaves(input_tensor) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        outputs = [leaf for leaf in tree_leaves(output_tensor) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if inputs and outputs and not (_is_plain(engine.optimizer) and splits(outputs)):
            return self.backward_step(engine, input_tensor, output_tensor, output_tensor_grad), None
        if not inputs or not outputs:  # the whole backward is the second pass
            return self._given_back(input_tensor, inputs, [None] * len(inputs)), (output_tensor, output_tensor_grad)
        gradients = output_tensor_grad
        if gradients is not None:
            gradients = list(gradients) if isinstance(gradients, (list, tuple)) else [gradients]
        split = SplitBackward(outputs, gradients, inputs)
        return self._given_back(input_tensor, inputs, split.of_inputs), split

    def backward_weight_step(self, engine, waiting):
        """The rest of a microbatch's backward: adds the parameters' gradients."""
        if isinstance(waiting, SplitBackward):
            waiting.finish()
        elif waiting is not None:
            self.backward_step(engine, None, *waiting)


def _is_plain(optimizer):
    """It has no backward of its own, which may scale the loss or count."""
    return type(optimizer) is WrappedOptimizer and not hasattr(optimizer.optim, "backward")
