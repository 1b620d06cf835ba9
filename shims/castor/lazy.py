"""Lazy initialization, as scripts call it (Colossal-AI: colossalai.lazy)."""
import torch

from .agent import core

core.require("castor.lazy")

from .agent import lazy  # noqa: E402 - needs the core

__all__ = ["LazyInitContext"]


class LazyInitContext:
    """Inside the context the node keeps one copy of the parameters that its ranks initialize alike, from each module's
    initialization on. Under the plugin `none` it does nothing.

    Args:
        tensor_cls: accepted and ignored: tensors are always PyTorch's own, and always have their values.
        default_device: the device of tensors that are made without one; None: as without the context. Only CPU tensors are
            shared.

    Values and the random state afterwards are, bit for bit, those of the same script without the context."""

    def __init__(self, tensor_cls=None, default_device=None):
        self._device = None if default_device is None else torch.device(default_device)
        self._ended = False

    def __enter__(self):
        self._ended = not lazy.wanted()
        lazy.begin()
        if self._device is not None:
            self._device.__enter__()
        return self

    def __exit__(self, *raised):
        if self._device is not None:
            self._device.__exit__(*raised)
        if self._ended:
            lazy.end()

    @staticmethod
    def materialize(module, verbose=False):
        """Returns `module`, whose parameters have their values already. `verbose`: logs how many bytes are shared."""
        if verbose:
            held, found, made = lazy.figures()
            core.log(2, f"lazy initialization: {held} bytes are kept for all ranks; {made} were made, and {found} more were the "
                        "same on another rank".encode())
        return module
