"""Checkpoints in Hugging Face's format for any model and optimizer (Colossal-AI: colossalai.checkpoint_io.general_checkpoint_io)."""
import os

import torch
from torch.nn.parallel import DistributedDataParallel

from . import _files, _jobs, _loading, _optimizers, _ranks, _saving, _torch_files
from ._files import CheckpointError
from .checkpoint_io_base import CheckpointIO

__all__ = ["GeneralCheckpointIO"]


def _module(model):
    """The script's own module."""
    while True:
        inner = model.unwrap() if callable(getattr(model, "unwrap", None)) else model.module if isinstance(model, DistributedDataParallel) else \
            getattr(model, "_orig_mod", model)  # of torch.compile
        if inner is model:
            break
        model = inner
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"castor: a model is a torch.nn.Module, and not {type(model).__name__}")
    return model


def _optimizer(optimizer):
    return optimizer.unwrap() if callable(getattr(optimizer, "unwrap", None)) else optimizer


class GeneralCheckpointIO(CheckpointIO):
    """For models whose state dict is whole on every rank, as under every plugin of CASTOR_PLUGIN, and for distributed tensors."""

    def save_sharded_model(self, model, checkpoint, gather_dtensor=True, prefix=None, size_per_shard=1024, use_safetensors=False, use_async=False):
        _saving.save_model(_module(model), checkpoint, True, gather_dtensor, prefix, size_per_shard, use_safetensors, use_async)

    def save_unsharded_model(self, model, checkpoint, gather_dtensor=True, use_safetensors=False, use_async=False, prefix=None):
        _saving.save_model(_module(model), checkpoint, False, gather_dtensor, prefix, 1024, use_safetensors, use_async)

    def load_sharded_model(self, model, index_file_path, strict=True):
        _ranks.settle()
        _loading.load_model(_module(model), index_file_path, strict)

    load_unsharded_model = load_sharded_model

    def save_sharded_optimizer(self, optimizer, checkpoint, gather_dtensor=True, prefix=None, size_per_shard=1024, use_async=False):
        _optimizers.save_optimizer(_optimizer(optimizer), checkpoint, True, gather_dtensor, prefix, size_per_shard, use_async)

    def save_unsharded_optimizer(self, optimizer, checkpoint, gather_dtensor=True, use_async=False):
        _optimizers.save_optimizer(_optimizer(optimizer), checkpoint, False, gather_dtensor, None, 1024, use_async)

    def load_sharded_optimizer(self, optimizer, index_file_path, prefix=None):
        _ranks.settle()
        _optimizers.load_optimizer(_optimizer(optimizer), index_file_path, prefix)

    def load_unsharded_optimizer(self, optimizer, checkpoint):
        self.load_sharded_optimizer(optimizer, checkpoint)

    def save_lr_scheduler(self, lr_scheduler, checkpoint):
        """Saves a scheduler's state dict in one file; rank 0 writes."""
        path, number = os.fspath(checkpoint), _ranks.note(checkpoint)
        if _ranks.rank():
            return
        saved = None
        try:
            _files.check_suffix(path, False)
            job = _jobs.job()
            job.add_torch(path, lr_scheduler.state_dict())
            job.commit()
            saved = job
        finally:
            _ranks.tell(checkpoint, number, saved)

    def load_lr_scheduler(self, lr_scheduler, checkpoint):
        """Loads it. CheckpointError: the file is damaged, or no scheduler's."""
        _ranks.settle()
        _ranks.wait_for_save(checkpoint)
        path = os.fspath(checkpoint)
        kind = _files.kind(path)
        saved = {} if kind == _files.SAFETENSORS else _torch_files.read(path, kind, False)
        if not isinstance(saved, dict) or "last_epoch" not in saved and "last_epoch" in lr_scheduler.state_dict():
            raise CheckpointError(f"castor: {path} is no state dict of a scheduler")
        lr_scheduler.load_state_dict(saved)
