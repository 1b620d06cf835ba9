"""What the data-parallel plugins have in common (Colossal-AI: colossalai.booster.plugin.dp_plugin_base)."""
import contextlib

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from ...accelerator import get_accelerator
from ...agent import engine_start
from ...interface import ModelWrapper, OptimizerWrapper
from ...utils import set_seed
from .plugin_base import Plugin, refuse_boosted

__all__ = ["DPPluginBase"]


class DPPluginBase(Plugin):
    """A plugin whose ranks each have the whole model, or parts of its data that only memory shows.

    `rank`, `world_size`: of the job, 0 and 1 without a process group. `dp_group`, `dp_size`: the data-parallel group (None: no process
    group) and the number of its ranks."""

    def __init__(self):
        super().__init__()
        self.dp_group = dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
        self.rank = dist.get_rank() if self.dp_group is not None else 0
        self.world_size = dist.get_world_size() if self.dp_group is not None else 1
        self.dp_size = self.world_size
        self._models = []  # boosted ones

    def supported_devices(self):
        return ["cpu", "cuda"]

    def control_device(self):
        return True

    def control_checkpoint_io(self):
        return True

    def support_no_sync(self):
        return True

    def support_lora(self):
        return True

    def get_checkpoint_io(self):
        from ...checkpoint_io import GeneralCheckpointIO

        return GeneralCheckpointIO()

    def no_sync(self, model=None, optimizer=None):
        """Of `model`; None: of all models that this plugin has boosted."""
        stack = contextlib.ExitStack()
        for each in self._models if model is None else [model]:
            if not isinstance(each, ModelWrapper):
                raise ValueError("castor: no_sync() of a model that was not boosted: give it what booster.boost() returned")
            stack.enter_context(each.no_sync())
        return stack

    def enable_lora(self, model, pretrained_dir=None, lora_config=None, bnb_quantization_config=None):
        from ...quantization import lora

        return lora.enable(model, pretrained_dir, lora_config, bnb_quantization_config)

    def prepare_dataloader(self, dataset, batch_size, shuffle=False, seed=1024, drop_last=False, pin_memory=False, num_workers=0,
                           distributed_sampler_cls=None, **kwargs):
        """A DataLoader over this rank's part of `dataset`; `batch_size` is a rank's. Each epoch has the same order, as PyTorch's
        DistributedSampler has it, until its set_epoch() is called.

        Args:
            seed: of the shuffling, and of the random numbers of workers, each of which gets numbers of its own.
            distributed_sampler_cls: instead of PyTorch's DistributedSampler.
            kwargs: DataLoader's."""
        if isinstance(dataset, IterableDataset):
            raise ValueError(f"castor: prepare_dataloader() of {type(dataset).__name__}, an IterableDataset, of which a rank cannot pick its part: let its "
                             "__iter__ yield every plugin.dp_size-th item from its rank in plugin.dp_group on, and give it to torch.utils.data.DataLoader")
        sampler = (distributed_sampler_cls or DistributedSampler)(dataset, num_replicas=self.dp_size, rank=self._data_rank(), shuffle=shuffle,
                                                                 **({"seed": seed} if distributed_sampler_cls is None else {}))
        kwargs.setdefault("worker_init_fn", _Seeded(seed + self._data_rank() * num_workers))
        return DataLoader(dataset, batch_size=batch_size, sampler=sampler, drop_last=drop_last, pin_memory=pin_memory, num_workers=num_workers,
                          **kwargs)

    def _data_rank(self):
        return self.rank if self.dp_group is None else dist.get_rank(self.dp_group)

    # ---- for subclasses

    def _to_device(self, model):
        return model.to(get_accelerator().get_current_device())

    def _wrap_model(self, model, **kwargs):
        """The model on this rank's device, in DistributedDataParallel where there are several ranks and something to train."""
        refuse_boosted(model)
        model = self._to_device(model)
        module = model
        if self.world_size > 1 and any(p.requires_grad for p in model.parameters()):
            device = next(model.parameters()).device
            module = torch.nn.parallel.DistributedDataParallel(
                model, device_ids=[device] if device.type == "cuda" else None, process_group=self.dp_group, **kwargs)
        wrapped = ModelWrapper(module)
        self._models.append(wrapped)
        return wrapped

    def _wrap_optimizer(self, optimizer, **kwargs):
        if optimizer is None or isinstance(optimizer, OptimizerWrapper):
            return optimizer
        engine_start.take_up(optimizer)
        return OptimizerWrapper(optimizer, **kwargs)

    def _train(self, model, optimizer, **kwargs):
        """Both wrapped, for the engine to train."""
        wrapped, optimizer = self._wrap_model(model), self._wrap_optimizer(optimizer, **kwargs)
        if optimizer is not None:
            engine_start.train_as_one(optimizer.unwrap())
        return wrapped, optimizer


class _Seeded:
    """Seeds a worker. A class, so that it can be sent to workers that are spawned."""

    def __init__(self, seed):
        self.seed = seed

    def __call__(self, worker_id):
        set_seed(self.seed + worker_id)
