"""What all schedules share, and the one without a pipeline."""
import abc

import torch
from torch.utils._pytree import tree_leaves

from ..trainer.utils import to_device


class BaseSchedule(abc.ABC):
    """Loads batches; a subclass defines how to train on one.

    Args:
        batch_data_process_func: makes (data, label) of an item of the loader; without it the items must be such pairs.
    """

    def __init__(self, batch_data_process_func=None):
        self.batch_data_process_func = batch_data_process_func
        self.batch_size = None  # samples of the batch loaded last
        self.device = None  # of batches: that of the engine's model

    def load_batch(self, data_iter, to_gpu=True):
        """The next batch of an iterator, as (data, label): tensors or nestings of them, on the device of the engine's model,
        unless `to_gpu` is False. RuntimeError: there is no iterator. StopIteration: it has ended."""
        if data_iter is None:
            raise RuntimeError("castor: the schedule has no data to load: pass iter(dataloader)")
        batch = next(data_iter)
        data, label = batch if self.batch_data_process_func is None else self.batch_data_process_func(batch)
        self.batch_size = _samples(label) or _samples(data)
        if to_gpu:
            device = self.device or (torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None)
            if device is not None:
                data, label = to_device(data, device), to_device(label, device)
        return data, label

    @abc.abstractmethod
    def forward_backward_step(self, engine, data_iter, forward_only, return_loss=True, return_output_label=True):
        """Runs a batch; returns (output, label, loss), each of which may be None."""

    def _follow(self, engine):
        """Batches go to the device of the engine's model."""
        model = getattr(engine, "model", None)
        parameter = next(model.parameters(), None) if isinstance(model, torch.nn.Module) else None
        self.device = None if parameter is None else parameter.device

    @staticmethod
    def _call_engine(engine, data):
        """Passes a list or tuple as the model's arguments, a dict as named ones, anything else as its one argument."""
        if isinstance(data, dict):
            return engine(**data)
        return engine(*data) if isinstance(data, (list, tuple)) else engine(data)

    @staticmethod
    def _call_criterion(engine, output, label):
        """Passes outputs, then labels, likewise. A dict of outputs becomes named arguments if the label is a dict, too."""
        if engine.criterion is None:
            raise RuntimeError("castor: the engine has no criterion, and the schedule needs a loss: pass one to "
                               "castor.initialize, or return_loss=False with forward_only=True")
        outputs = output if isinstance(output, (list, tuple)) else (output,)
        if isinstance(label, dict):
            return engine.criterion(**output, **label) if isinstance(output, dict) else engine.criterion(*outputs, **label)
        labels = () if label is None else label if isinstance(label, (list, tuple)) else (label,)
        return engine.criterion(*outputs, *labels)


class NonPipelineSchedule(BaseSchedule):
    """Runs the whole model on a batch at once."""

    def forward_backward_step(self, engine, data_iter, forward_only=False, return_loss=True, return_output_label=True):
        """Loads a batch, runs the model and the criterion and, unless `forward_only`, backward. It neither zeroes gradients nor
        steps.

        Returns (output, label, loss). loss: a scalar tensor, None unless `return_loss`; output and label: None unless
        `return_output_label`. With `forward_only` no graph is kept, and a loss that is not returned is not computed.
        RuntimeError: a loss is needed and the engine has no criterion."""
        self._follow(engine)
        data, label = self.load_batch(data_iter)
        loss = None
        with torch.set_grad_enabled(torch.is_grad_enabled() and not forward_only):
            output = self._call_engine(engine, data)
            if return_loss or not forward_only:
                loss = self._call_criterion(engine, output, label)
        if not forward_only:
            engine.backward(loss)
        if not return_output_label:
            output = label = None
        return output, label, loss if return_loss else None


def _samples(data):
    """The length of the first tensor in a nesting; None: there is none."""
    return next((len(leaf) for leaf in tree_leaves(data) if isinstance(leaf, torch.Tensor) and leaf.dim()), None)
