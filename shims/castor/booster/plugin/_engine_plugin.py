"""A plugin that is one of the engine's (CASTOR_PLUGIN), as an object."""
from ...agent import engine_start
from .dp_plugin_base import DPPluginBase
from .plugin_base import tell_of_meaningless

_SCALE = {"initial_scale": "scale", "min_scale": "smallest", "max_scale": "largest", "growth_factor": "growth", "backoff_factor": "backoff",
          "growth_interval": "interval", "hysteresis": "hysteresis"}


def scale_of(given):
    """The fields of castor_loss_scale from a plugin's parameters. ValueError: a number that is none of a loss scale's."""
    fields = {field: given[name] for name, field in _SCALE.items()}
    problems = {
        "initial_scale": not 0 < fields["smallest"] <= fields["scale"] <= fields["largest"], "growth_factor": not fields["growth"] >= 1,
        "backoff_factor": not 0 < fields["backoff"] <= 1, "growth_interval": not fields["interval"] >= 1, "hysteresis": not fields["hysteresis"] >= 1}
    wrong = [f"{name}={given[name]!r}" for name, is_wrong in problems.items() if is_wrong]
    if wrong:
        raise ValueError(f"castor: a loss scale with {', '.join(wrong)}: expected 0 < min_scale <= initial_scale <= max_scale, growth_factor >= 1, "
                         "0 < backoff_factor <= 1, growth_interval >= 1 and hysteresis >= 1")
    return dict(fields, interval=int(fields["interval"]), hysteresis=int(fields["hysteresis"]))


class EnginePlugin(DPPluginBase):
    """Starts the engine when it is made.

    Args:
        plugin: CASTOR_PLUGIN's word.
        options: CASTOR_… by name, as text.
        given: the subclass's parameters by name.
        meaningless: as tell_of_meaningless takes it."""

    def __init__(self, plugin, options, given, meaningless):
        super().__init__()
        self.precision = given.get("precision", "fp32")
        if self.precision not in self.supported_precisions():
            raise ValueError(f"castor: {type(self).__name__}(precision={self.precision!r}): expected one of "
                             f"{', '.join(map(repr, self.supported_precisions()))}")
        self._scale = scale_of(given)
        self._clipping = {"max_norm": given["max_norm"] or 0.0, "norm_type": given["norm_type"]}
        tell_of_meaningless(self, given, meaningless)
        engine_start.start(plugin, f"{type(self).__name__}", **options)

    def supported_precisions(self):
        return ["fp16", "bf16", "fp32"]

    def control_precision(self):
        return True

    def configure(self, model, optimizer=None, criterion=None, dataloader=None, lr_scheduler=None):
        engine_start.use_precision(self.precision, **(self._scale if self.precision == "fp16" else {}))
        return *self._train(model, optimizer, **self._clipping), criterion, dataloader, lr_scheduler
