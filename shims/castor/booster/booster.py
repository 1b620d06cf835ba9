"""One interface for training with a plugin, a precision and checkpoints (Colossal-AI: colossalai.booster.booster)."""
import contextlib
import warnings

import torch
import torch.distributed as dist

from ..agent import core

core.require("castor.booster")

from ..agent import engine_start  # noqa: E402 - needs the core
from ..interface import OptimizerWrapper  # noqa: E402
from .accelerator import Accelerator  # noqa: E402
from .mixed_precision import MixedPrecision, class_named  # noqa: E402
from .plugin.plugin_base import Plugin  # noqa: E402

__all__ = ["Booster"]


class Booster:
    """Applies a plugin and a precision to the parts of a training script.

    Args:
        device: "cpu", "cuda", ...: where boost() moves models, without a plugin; by default cuda if there is one. A plugin decides the device:
            a warning, if both are given.
        mixed_precision: "fp16", "fp16_apex", "fp16_naive", "bf16", "fp8", or a castor.booster.mixed_precision.MixedPrecision. Every plugin but
            TorchDDPPlugin decides the precision by its own parameter: a warning, if both are given.
        plugin: a castor.booster.plugin.Plugin; None: one process, without an engine.
        precision: another name of mixed_precision.

    ValueError: another name of a precision. TypeError: an object of another class."""

    def __init__(self, device=None, mixed_precision=None, plugin=None, *, precision=None):
        if precision is not None and mixed_precision is not None:
            raise ValueError("castor: Booster() got mixed_precision and precision, which are two names of one parameter")
        mixed_precision = mixed_precision if precision is None else precision
        if plugin is not None and not isinstance(plugin, Plugin):
            raise TypeError(f"castor: Booster(plugin={plugin!r}): expected an object of a class of castor.booster.plugin")
        if isinstance(mixed_precision, str):
            of_name = class_named(mixed_precision)  # a name that will be ignored must be right, too
            mixed_precision = of_name() if plugin is None or not plugin.control_precision() else mixed_precision
        elif mixed_precision is not None and not isinstance(mixed_precision, MixedPrecision):
            raise TypeError(f"castor: Booster(mixed_precision={mixed_precision!r}): expected a name or a castor.booster.mixed_precision.MixedPrecision")
        self.plugin, self.mixed_precision = plugin, mixed_precision
        name = type(plugin).__name__
        if plugin is not None and plugin.control_precision() and mixed_precision is not None:
            warnings.warn(f"castor: {name} decides the precision by its own parameter `precision`: the Booster's is ignored", stacklevel=2)
            self.mixed_precision = None
        if plugin is not None and plugin.control_device():
            if device is not None:
                warnings.warn(f"castor: {name} decides the device: the Booster's is ignored", stacklevel=2)
            self.accelerator = None
        else:
            self.accelerator = Accelerator(device or ("cuda" if torch.cuda.is_available() else "cpu"))
            self.accelerator.bind()
        if plugin is None and dist.is_initialized() and dist.get_world_size() > 1:
            engine_start.tell("a Booster without a plugin trains each rank's model by itself: give it a plugin, such as TorchDDPPlugin()")
        self._checkpoint_io = None

    @property
    def checkpoint_io(self):
        """What saves and loads: the plugin's CheckpointIO, else a GeneralCheckpointIO."""
        if self._checkpoint_io is None:
            from ..checkpoint_io import GeneralCheckpointIO

            own = self.plugin is not None and self.plugin.control_checkpoint_io()
            self._checkpoint_io = self.plugin.get_checkpoint_io() if own else GeneralCheckpointIO()
        return self._checkpoint_io

    def boost(self, model, optimizer=None, criterion=None, dataloader=None, lr_scheduler=None):
        """Returns (model, optimizer, criterion, dataloader, lr_scheduler) as the script goes on with them. Call it on every rank, once
        for each model. ValueError: a model was boosted already, or `optimizer` has none of its parameters. TypeError:
        `model` is no module."""
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"castor: boost() of a {type(model).__name__}: expected a torch.nn.Module, and what belongs to it by name")
        if optimizer is not None and hasattr(optimizer, "param_groups"):
            own = {id(p) for p in model.parameters()}
            if not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
                raise ValueError(f"castor: boost(): this {type(optimizer).__name__} has none of the model's parameters, and would train nothing of it: "
                                 "build it from model.parameters(), of the model that is boosted, and not of a copy")
        own_precision = self.plugin is None or not self.plugin.control_precision()
        if own_precision:
            self._begin_precision()
        if self.plugin is not None:
            model, optimizer, criterion, dataloader, lr_scheduler = self.plugin.configure(model, optimizer, criterion, dataloader, lr_scheduler)
        if self.accelerator is not None:
            model = self.accelerator.configure_model(model)
        if self.mixed_precision is not None and own_precision:
            model, optimizer, criterion = self.mixed_precision.configure(model, optimizer, criterion)
        if optimizer is not None and not isinstance(optimizer, OptimizerWrapper):
            engine_start.take_up(optimizer)
            optimizer = OptimizerWrapper(optimizer)
        if optimizer is not None and getattr(self.plugin, "world_size", 1) > 1:
            optimizer.frozen = [p for p in model.parameters() if not p.requires_grad]
        if optimizer is not None and self._engine_precision():
            engine_start.train_as_one(optimizer.unwrap())
        return model, optimizer, criterion, dataloader, lr_scheduler

    def _engine_precision(self):
        return getattr(self.mixed_precision, "engine_precision", None)

    def _begin_precision(self):
        """The engine's precision, where this Booster has one or the engine runs."""
        wanted = self._engine_precision()
        if wanted is not None and not core.plugin_engine():
            engine_start.start("ddp", f"Booster(mixed_precision={type(self.mixed_precision).__name__})")
        if core.plugin_engine():
            engine_start.use_precision(wanted, **(getattr(self.mixed_precision, "scale", {}) if wanted else {}))

    def backward(self, loss, optimizer):
        """Adds the gradients of `loss`, a scalar tensor, to the parameters'."""
        optimizer.backward(loss)

    def execute_pipeline(self, data_iter, model, criterion, optimizer=None, return_loss=True, return_outputs=False):
        """Trains on the next batch of `data_iter` through the stages of a pipeline, microbatch by microbatch; evaluates, without an
        optimizer or in no_grad().

        Args:
            model: what boost() returned.
            criterion: called with (outputs, microbatch); returns a scalar tensor, the mean over the microbatch.

        Returns {'loss': the sum of the microbatches' losses, each divided by their number, 'outputs': merged}: on the last stage, None
        elsewhere and if not asked for. RuntimeError: the plugin has no pipeline."""
        execute = getattr(self.plugin, "execute_pipeline", None)
        if execute is None:
            what = "a Booster without a plugin" if self.plugin is None else type(self.plugin).__name__
            raise RuntimeError(f"castor: {what} has no pipeline: use HybridParallelPlugin(tp_size=..., pp_size=2), or call the model and "
                               "booster.backward()")
        return execute(data_iter, model, criterion, optimizer, return_loss, return_outputs)

    def no_sync(self, model=None, optimizer=None):
        """The context in which backward passes add to each rank's own gradients; the first one after it sums them over the ranks."""
        if self.plugin is None:
            return contextlib.nullcontext()
        if not self.plugin.support_no_sync():
            raise RuntimeError(f"castor: {type(self.plugin).__name__} has no no_sync()")
        return self.plugin.no_sync(model, optimizer)

    def enable_lora(self, model, pretrained_dir=None, lora_config=None, bnb_quantization_config=None, quantize=False):
        """The model with LoRA modules (peft), of which alone an optimizer needs the parameters. Call it before boost().

        Args:
            pretrained_dir: a directory of adapters that save_lora_as_pretrained() or peft wrote, with their configuration.
            lora_config: a peft.LoraConfig.
            bnb_quantization_config: a castor.quantization.BnbQuantizationConfig: the other parameters are quantized (bitsandbytes).
            quantize: the same, in 4 bits.

        ValueError: neither directory nor configuration. ImportError: there is no peft, or no bitsandbytes."""
        from ..quantization import lora

        if self.plugin is not None and not self.plugin.support_lora():
            raise RuntimeError(f"castor: {type(self.plugin).__name__} does not train LoRA modules")
        return lora.enable(model, pretrained_dir, lora_config, bnb_quantization_config, quantize)

    def save_lora_as_pretrained(self, model, checkpoint, use_safetensors=False):
        """Writes the adapters and their configuration to the directory `checkpoint`, as peft does."""
        from ..quantization import lora

        lora.save(model, checkpoint, use_safetensors)

    def load_model(self, model, checkpoint, strict=True, low_cpu_mem_mode=True, num_threads=1):
        """Loads a model, boosted or not, from a file, an index or a directory. RuntimeError: names or shapes differ, and `strict`.
        `low_cpu_mem_mode`, `num_threads`: accepted; a file's tensors are read one by one."""
        return self.checkpoint_io.load_model(model, checkpoint, strict, low_cpu_mem_mode, num_threads)

    def save_model(self, model, checkpoint, shard=False, gather_dtensor=True, prefix=None, size_per_shard=1024, use_safetensors=False,
                   use_async=False):
        """Saves a model to the file, or with `shard` to the directory, `checkpoint`.

        Args:
            gather_dtensor: whole tensors; else each rank's parts.
            prefix: put before each key.
            size_per_shard: in MiB.
            use_safetensors: .safetensors instead of PyTorch's .bin.
            use_async: returns at once, and the files are written in the background, with what the model is now."""
        self.checkpoint_io.save_model(model, checkpoint, shard, gather_dtensor, prefix, size_per_shard, use_safetensors, use_async)

    def load_optimizer(self, optimizer, checkpoint, low_cpu_mem_mode=True, num_threads=1):
        """Loads an optimizer's states, from a file, an index or a directory. The last two arguments: as load_model()."""
        self.checkpoint_io.load_optimizer(optimizer, checkpoint, low_cpu_mem_mode=low_cpu_mem_mode, num_threads=num_threads)

    def save_optimizer(self, optimizer, checkpoint, shard=False, gather_dtensor=True, prefix=None, size_per_shard=1024, use_async=False):
        """Saves an optimizer's states; the parameters are save_model()'s."""
        self.checkpoint_io.save_optimizer(optimizer, checkpoint, shard, gather_dtensor, prefix, size_per_shard, use_async)

    def save_lr_scheduler(self, lr_scheduler, checkpoint):
        self.checkpoint_io.save_lr_scheduler(lr_scheduler, checkpoint)

    def load_lr_scheduler(self, lr_scheduler, checkpoint):
        self.checkpoint_io.load_lr_scheduler(lr_scheduler, checkpoint)
