"""What the Booster asks of a plugin (Colossal-AI: colossalai.booster.plugin.plugin_base)."""
import abc

from ...agent import core

core.require("castor.booster")

from ...agent import engine_start  # noqa: E402 - needs the core
from ...interface import ModelWrapper  # noqa: E402

__all__ = ["Plugin", "refuse_boosted", "tell_of_meaningless"]


class Plugin(abc.ABC):
    """A way of training that a Booster applies to the parts of a script."""

    @abc.abstractmethod
    def supported_devices(self):
        """Names of types of devices."""

    @abc.abstractmethod
    def supported_precisions(self):
        """Words for its `precision`, or for the Booster's `mixed_precision` if it does not control the precision."""

    @abc.abstractmethod
    def control_precision(self):
        """Whether the plugin decides the precision, and the Booster's `mixed_precision` does not count."""

    @abc.abstractmethod
    def control_device(self):
        """Whether the plugin decides the device, and the Booster's `device` does not count."""

    @abc.abstractmethod
    def support_no_sync(self):
        pass

    @abc.abstractmethod
    def support_lora(self):
        pass

    @abc.abstractmethod
    def configure(self, model, optimizer=None, criterion=None, dataloader=None, lr_scheduler=None):
        """Returns all five as the script goes on with them. Called once for each model, on every rank."""

    @abc.abstractmethod
    def control_checkpoint_io(self):
        """Whether checkpoints go through get_checkpoint_io()."""

    @abc.abstractmethod
    def get_checkpoint_io(self):
        """A castor.checkpoint_io.CheckpointIO."""

    @abc.abstractmethod
    def no_sync(self, model, optimizer=None):
        """The context in which backward passes add to each rank's own gradients."""

    @abc.abstractmethod
    def enable_lora(self, model, pretrained_dir=None, lora_config=None, bnb_quantization_config=None):
        """The model with LoRA modules."""

    @abc.abstractmethod
    def prepare_dataloader(self, dataset, batch_size, shuffle=False, seed=1024, drop_last=False, pin_memory=False, num_workers=0,
                           distributed_sampler_cls=None, **kwargs):
        """A DataLoader that gives each data-parallel rank its part of the data set."""


def refuse_boosted(model):
    """ValueError: the model is one that boost() returned."""
    if isinstance(model, ModelWrapper):
        raise ValueError("castor: this model was boosted already: boost each model once")


def tell_of_meaningless(plugin, given, reasons):
    """One line for each parameter that has no meaning here and was given another value than its default.

    Args:
        given: the parameters' values by name.
        reasons: name: (default, why it has no meaning)."""
    for name, (default, why) in reasons.items():
        if given[name] != default:
            engine_start.tell(f"{type(plugin).__name__}({name}={given[name]!r}) has no meaning here: {why}")
