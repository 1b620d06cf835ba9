"""Gradient handlers, called between backward and step (Colossal-AI: colossalai.engine.gradient_handler)."""
import abc

import torch
import torch.distributed as dist
from torch.utils.weak import WeakTensorKeyDictionary

from ..agent import core
from ..agent.backward import reducer
from ..cluster.process_groups import group_of

core.require()

__all__ = ["BaseGradientHandler", "DataParallelGradientHandler", "ReplicaGradientHandler", "TiedGradientHandler"]


class BaseGradientHandler(abc.ABC):
    """Handles the gradients of `model`, which `optimizer` will step."""

    def __init__(self, model, optimizer):
        self._model = model
        self._optimizer = optimizer

    @abc.abstractmethod
    def handle_gradient(self):
        """Called before each step."""


class DataParallelGradientHandler(BaseGradientHandler):
    """Averages the gradients over the ranks of `process_group` (all by default), for models that no
    DistributedDataParallel wraps: one reduction per dtype and device.

    A rank that did not use a parameter contributes zeros, and gets the mean, too. A parameter that no rank used keeps no
    gradient. Called on every rank of the group; does nothing if torch.distributed is not initialized."""

    def __init__(self, model, optimizer, process_group=None):
        super().__init__(model, optimizer)
        self._process_group = process_group

    @torch.no_grad()
    def handle_gradient(self):
        if not (dist.is_available() and dist.is_initialized()):
            return
        ranks = dist.get_world_size(self._process_group)
        if ranks <= 1:
            return
        buckets = {}
        for p in self._model.parameters():
            if p.requires_grad:
                buckets.setdefault((p.dtype, p.device), []).append(p)
        for parameters in buckets.values():
            self._average(parameters, ranks)

    def _average(self, parameters, ranks):
        """Every rank sends all gradients, then flags of those that it used: ranks may have used different parameters."""
        gradients = [p.grad if p.grad is None or p.grad.layout is torch.strided else p.grad.to_dense() for p in parameters]
        used = parameters[0].new_tensor([float(g is not None) for g in gradients])
        bucket = torch.cat([*(torch.zeros_like(p).reshape(-1) if g is None else g.reshape(-1).to(p.dtype) for p, g in zip(parameters, gradients)), used])
        dist.all_reduce(bucket, group=self._process_group)
        bucket, used = bucket[: -len(parameters)].div_(ranks), bucket[-len(parameters) :].tolist()
        for p, gradient, mean, users in zip(parameters, gradients, bucket.split([p.numel() for p in parameters]), used):
            if not users:
                continue
            mean = mean.view(p.shape)
            if p.grad is not None and p.grad is gradient:
                p.grad.copy_(mean)
            else:
                p.grad = mean.clone(memory_format=torch.contiguous_format)


class ReplicaGradientHandler(DataParallelGradientHandler):
    """The same for a pipeline stage's ranks of equal stage. Under a plugin (ddp, zero1, zero2, gemini) the node's store has their
    parameters, the sums of their gradients and the optimizer's states once."""

    def __init__(self, model, optimizer, process_group):
        super().__init__(model, optimizer, process_group)
        self._reducer = reducer.of_replicas(process_group, [p for p in model.parameters() if p.requires_grad])

    def handle_gradient(self):
        if self._reducer is None:
            super().handle_gradient()
        else:
            self._reducer.sum_accumulated()


_first_stages = WeakTensorKeyDictionary()  # a parameter that stages share: whether this is the first of them


def counted_elsewhere(parameters):
    """Those that an earlier stage has as well, and counts in norms of all gradients."""
    return [p for p in parameters if not _first_stages.get(p, True)]


class TiedGradientHandler(BaseGradientHandler):
    """Adds the gradients of parameters that several pipeline stages share: `castor_tied` of castor.pipeline.partition's parts. Made on
    every rank; the stages get the first one's values.

    model: a part, or an nn.ModuleList of several. groups: the job's ParallelGroups; part p is on stage p mod S."""

    def __init__(self, model, groups):
        super().__init__(model, None)
        self._tied = []  # (parameter, PyTorch's group)
        for parts, parameter in self.of(model):
            stages = sorted({part % groups.stages for part in parts})
            if parameter is not None:
                _first_stages[parameter] = stages[0] == groups.stage
            for pipeline in groups.pipelines if len(stages) > 1 else ():
                ranks = [pipeline[stage] for stage in stages]
                group = group_of(ranks)
                if parameter is not None and dist.get_rank() in ranks:
                    dist.broadcast(parameter.detach(), ranks[0], group=group)
                    self._tied.append((parameter, group))

    @staticmethod
    def of(model):
        """[(the parts that share a parameter, the parameter, or None where the model has none of these parts)], alike on all ranks."""
        parts = list(model) if isinstance(model, torch.nn.ModuleList) else [model]
        each = zip(*(getattr(part, "castor_tied", ()) for part in parts))
        return [(of_parts[0][0], next((p for _, p in of_parts if p is not None), None)) for of_parts in each]

    @torch.no_grad()
    def handle_gradient(self):
        for parameter, group in self._tied:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=group)
