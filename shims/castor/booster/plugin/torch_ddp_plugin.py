"""Data parallelism (Colossal-AI: colossalai.booster.plugin.torch_ddp_plugin)."""
import torch

from ...agent import engine_start
from .dp_plugin_base import DPPluginBase
from .plugin_base import tell_of_meaningless

__all__ = ["TorchDDPPlugin"]

_MEANINGLESS = {"fp8_communication": (False, "ranks of a node read each other's memory and send nothing")}


class TorchDDPPlugin(DPPluginBase):
    """PyTorch's DistributedDataParallel, under CASTOR_PLUGIN=ddp.

    Args:
        broadcast_buffers, bucket_cap_mb, find_unused_parameters, check_reduction, gradient_as_bucket_view, static_graph:
            DistributedDataParallel's, which has them all; Castor's reducer has no buckets, and finds unused parameters by itself.
        fp8_communication: no meaning here; a line says why.
        sync_batchnorm: on devices, BatchNorm takes its statistics over all ranks (torch.nn.SyncBatchNorm)."""

    def __init__(self, broadcast_buffers=True, bucket_cap_mb=25, find_unused_parameters=False, check_reduction=False, gradient_as_bucket_view=False,
                 static_graph=False, fp8_communication=False, sync_batchnorm=False):
        super().__init__()
        self.ddp_kwargs = {"broadcast_buffers": broadcast_buffers, "bucket_cap_mb": bucket_cap_mb, "find_unused_parameters": find_unused_parameters,
                           "check_reduction": check_reduction, "gradient_as_bucket_view": gradient_as_bucket_view, "static_graph": static_graph}
        self.sync_batchnorm = sync_batchnorm
        tell_of_meaningless(self, {"fp8_communication": fp8_communication}, _MEANINGLESS)
        engine_start.start("ddp", "TorchDDPPlugin")

    def supported_precisions(self):
        return ["fp16", "fp16_apex", "fp16_naive", "bf16", "fp8"]

    def control_precision(self):
        return False

    def configure(self, model, optimizer=None, criterion=None, dataloader=None, lr_scheduler=None):
        if self.sync_batchnorm and torch.cuda.is_available():
            model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model, self.dp_group)
        model = self._wrap_model(model, **self.ddp_kwargs)
        return model, self._wrap_optimizer(optimizer), criterion, dataloader, lr_scheduler
