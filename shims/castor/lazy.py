"""Lazy initialization, as scripts call it (Colossal-AI: colossalai.lazy)."""
import torch

from .agent import core

core.require()

from .agent import lazy  # noqa: E402 - needs the core

__all__ = ["LazyInitContext"]


class LazyInitContext:
    """While it is entered, models are made without their memory on every rank: what the ranks of a node initialize alike is kept
    once, from each module's initialization on. Under the plugin `none` it does nothing.

    Args:
        tensor_cls: accepted, and ignored: tensors are PyTorch's own, with their values, at any moment.
        default_device: where tensors are made whose device is not named; None: as without the context. What is not on the CPU is
            not shared.

    Values, and the random state afterwards, are those that the same script gives without the context, bit for bit."""

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
        """Returns `module`, whose parameters have their values already. `verbose`: writes to the log how many bytes are shared."""
        if verbose:
            held, found, made = lazy.figures()
            core.log(2, f"lazy initialization: {held} bytes are kept for all ranks; {made} were made, and {found} more were the "
                        "same on another rank".encode())
        return module
