"""What the Booster asks of a plugin with pipelines (Colossal-AI: colossalai.booster.plugin.pp_plugin_base)."""
import abc

from .dp_plugin_base import DPPluginBase

__all__ = ["PipelinePluginBase"]


class PipelinePluginBase(DPPluginBase):
    @abc.abstractmethod
    def execute_pipeline(self, data_iter, model, criterion, optimizer=None, return_loss=True, return_outputs=False):
        """{'loss': ..., 'outputs': ...}, as Booster.execute_pipeline describes them."""
