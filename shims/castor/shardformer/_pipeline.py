"""Booster.execute_pipeline over castor.engine's schedules."""
import contextlib
from collections.abc import Mapping

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..checkpoint_io import _ranks
from ..engine import Engine, _parallel_groups
from ..engine._pipeline_schedule import InterleavedPipelineSchedule, PipelineSchedule
from ..engine._zero_bubble import ZeroBubblePipelineSchedule
from ..utils.optimizer_wrapper import WrappedOptimizer
from ._gradients import sum_over_stages
from ._module import refuse_inner_outputs

__all__ = ["STYLES", "StageManager", "execute", "make_schedule"]


class StageManager:
    """Where this rank is in its pipeline."""

    def __init__(self, groups, chunks):
        self._groups, self.num_model_chunks = groups, chunks
        self.num_stages, self.stage, self.is_interleave = groups.stages, groups.stage, chunks > 1

    def is_first_stage(self, ignore_chunk=False):
        return self.stage == 0

    def is_last_stage(self, ignore_chunk=False):
        return self.stage == self.num_stages - 1

    def get_rank(self):
        return self._groups.stage_ranks[self.stage]

    def get_prev_rank(self):
        return self._groups.stage_ranks[self.stage - 1]

    def get_next_rank(self):
        return self._groups.stage_ranks[(self.stage + 1) % self.num_stages]


class _Boosted:
    """Put before a schedule's class: parts of a StagedModel on every stage, and a criterion of outputs and the microbatch."""

    every_stage_loads = True
    microbatch_size = None

    def load_batch(self, data_iter, to_gpu=True):
        """What is wrong with a batch is said here, where all ranks of the pipeline learn of it."""
        if self.microbatch_size is None:
            batch = super().load_batch(data_iter, to_gpu)
            refuse_inner_outputs(batch[0], _parallel_groups.groups())
            return batch
        self.num_microbatches = 1
        batch = super().load_batch(data_iter, to_gpu)
        if self.batch_size % self.microbatch_size:
            raise ValueError(f"castor: a batch of {self.batch_size} samples does not divide into microbatches of {self.microbatch_size}")
        self.num_microbatches = self.batch_size // self.microbatch_size
        refuse_inner_outputs(batch[0], _parallel_groups.groups())
        return batch

    def _settings(self, forward_only):
        settings = super()._settings(forward_only)
        return settings if self.microbatch_size is None else {**settings, "num_microbatches": f"of {self.microbatch_size} samples"}

    @staticmethod
    def _call_engine(engine, data):
        return engine(None, data)

    @staticmethod
    def _call_criterion(engine, output, label):
        return engine.criterion(output, label)

    @staticmethod
    def _together(returned):
        """Outputs put together on dimension 0; of float scalars, which are losses, the mean."""
        leaves, tree = zip(*(tree_flatten(output) for output, _ in returned))
        together = []
        for of in zip(*leaves):
            if not isinstance(of[0], torch.Tensor):
                together.append(of[0])
            elif of[0].dim():
                together.append(torch.cat(of))
            else:
                together.append(torch.stack(of).mean() if of[0].is_floating_point() else torch.stack(of))
        return tree_unflatten(together, tree[0]), None


_CLASSES = {"1f1b": PipelineSchedule, "interleaved": InterleavedPipelineSchedule, "zbv": ZeroBubblePipelineSchedule}
STYLES = tuple(_CLASSES)


def _batch(item):
    """Both for the model and for the criterion."""
    item = dict(item) if isinstance(item, Mapping) else item
    return item, item


def make_schedule(style, microbatches, size, chunks):
    kind = _CLASSES[style]
    made = type(kind.__name__, (_Boosted, kind), {})
    schedule = made(microbatches or 1, *([chunks] if style == "interleaved" else []), batch_data_process_func=_batch)
    schedule.microbatch_size = size if microbatches is None else None
    return schedule


class _Scaled(WrappedOptimizer):
    """Backward of losses times `scale`."""

    def __init__(self, optim, scale):
        super().__init__(optim)
        self._by = scale

    def backward(self, loss, *args, **kwargs):
        (loss * self._by).backward(*args, **kwargs)


def execute(schedule, groups, data_iter, model, criterion, optimizer, return_loss, return_outputs, bucket):
    forward_only = optimizer is None or not torch.is_grad_enabled()
    if not forward_only:
        _ranks.trains()
    parts, common = model.staged.parts, [p for p in model.staged.common.values() if p.requires_grad]
    for part in parts:
        part.training = model.training
    trained = None
    if not forward_only:
        trained = WrappedOptimizer(optimizer.optim) if optimizer.loss_scale == 1.0 else _Scaled(optimizer.optim, optimizer.loss_scale)
    engine = Engine(torch.nn.ModuleList(parts) if len(parts) > 1 or isinstance(schedule, InterleavedPipelineSchedule) else parts[0], trained,
                    lambda output, batch: criterion(model.cast_back(output), batch), schedule=schedule)
    kept = [p.grad for p in common]  # which are sums over the stages already
    if not forward_only:
        for p in common:
            p.grad = None
    try:
        with contextlib.nullcontext() if forward_only else optimizer.scaled():
            output, _, loss = engine.execute_schedule(data_iter, forward_only=forward_only, return_loss=return_loss, return_output_label=return_outputs)
        if not forward_only:
            sum_over_stages(common, groups.stage_group, bucket)
    finally:
        if not forward_only:
            for p, before in zip(common, kept):
                if before is not None:
                    p.grad = before if p.grad is None else before.add_(p.grad)
    if not forward_only:
        optimizer.synchronize()
    return {"loss": None if loss is None else loss.reshape(()), "outputs": None if output is None else model.cast_back(output)}
