"""A model as the Booster returns it (Colossal-AI: colossalai.interface.model)."""
import contextlib

import torch
from torch.nn.parallel import DistributedDataParallel

__all__ = ["AMPModelMixin", "ModelWrapper"]


class ModelWrapper(torch.nn.Module):
    """Wraps `module`: calling it calls the module."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def unwrap(self, unwrap_peft=True):
        """The script's own module, from inside all wrappers. `unwrap_peft`: accepted; peft's models are the script's own here."""
        module = self.module
        while isinstance(module, (ModelWrapper, DistributedDataParallel)):
            module = module.module
        return module

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def no_sync(self):
        """The context in which backward passes add to this rank's own gradients alone."""
        inner = getattr(self.module, "no_sync", None)
        return contextlib.nullcontext() if inner is None else inner()


class AMPModelMixin:
    """What models in mixed precision have besides."""

    def update_master_params(self):
        """Does nothing: the masters follow what the script writes by themselves."""
