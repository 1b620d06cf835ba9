"""Under CASTOR_PRECISION a script saves and loads the float values, and not their 16-bit copies."""
import functools
import sys
import threading

import torch

from .. import core, patching
from . import masters


def _saving(stock):
    @functools.wraps(stock)
    def _save_to_state_dict(self, destination, prefix, keep_vars):
        stock(self, destination, prefix, keep_vars)
        if keep_vars or not masters.has_any():
            return
        for name, t in (*self._parameters.items(), *self._buffers.items()):
            wide = None if t is None else masters.of(t)
            if prefix + name not in destination:
                continue
            if wide is not None:
                destination[prefix + name] = wide.shown()
            elif name in self.__dict__.get(masters.FLOATS, ()):  # the model has replaced the buffer
                destination[prefix + name] = t.detach().float()

    return _save_to_state_dict


def _loading(stock):
    @functools.wraps(stock)
    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args, **kwargs):
        wides = {} if not masters.has_any() else {
            name: (masters.of(t), t) for name, t in (*self._parameters.items(), *self._buffers.items()) if t is not None and masters.of(t)}
        if wides and local_metadata.get("assign_to_params_buffers", False):
            raise core.Error("castor: load_state_dict(assign=True) replaces parameters of which CASTOR_PRECISION keeps the "
                             "masters: load without assign, or before the model is wrapped and its optimizer built")
        stock(self, state_dict, prefix, local_metadata, *args, **kwargs)
        with torch.no_grad():
            for name, (wide, t) in wides.items():
                value = state_dict.get(prefix + name)
                if isinstance(value, torch.Tensor) and value.shape == t.shape:
                    wide.load(value)

    return _load_from_state_dict


def _state_loading(stock):
    @functools.wraps(stock)
    def _process_value_according_to_param_policy(param, value, *args, **kwargs):
        if masters.of(param) is None or not value.is_floating_point():
            return stock(param, value, *args, **kwargs)
        return stock(param.new_empty(0, dtype=torch.float32), value, *args, **kwargs)  # its states are of the master's type

    return _process_value_according_to_param_policy


def _syncing(stock):
    """DistributedDataParallel gives every rank the buffers of one before each forward: the model has not written them."""

    @functools.wraps(stock)
    def _sync_buffers(self):
        stock(self)
        for wide in filter(None, map(masters.of, self.modules_buffers)):
            wide.narrow_seen()

    return _sync_buffers


def _accumulators(stock):
    """Adagrad makes its states when it is built."""

    @functools.wraps(stock)
    def __init__(self, *args, **kwargs):
        stock(self, *args, **kwargs)
        for group in self.param_groups:
            for p in group["params"]:
                if masters.of(p) is not None:
                    self.state[p]["sum"] = torch.full_like(p, group["initial_accumulator_value"], dtype=torch.float32)

    return __init__


_configured = threading.local()  # of: the model whose save_pretrained() runs


def _saving_model(save):
    @functools.wraps(save)
    def save_pretrained(self, *args, **kwargs):
        before, _configured.of = getattr(_configured, "of", None), self
        try:
            return save(self, *args, **kwargs)
        finally:
            _configured.of = before

    save_pretrained._castor = True
    return save_pretrained


def _saved_type(type_of):
    def dtype_of(self):
        found = type_of.fget(self)
        saved = getattr(_configured, "of", None) is self and found is masters.dtype
        wide = next(filter(None, map(masters.of, self.parameters())), None) if saved else None
        return found if wide is None else torch.float32

    return property(dtype_of, doc=type_of.__doc__)


def _watch_transformers():
    """save_pretrained() writes the model's type into its configuration, from which the next run builds the model. It must be the
    type of the saved weights, which are the wide ones."""
    model = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    if model is not None and not getattr(model.save_pretrained, "_castor", False):
        patching.replace("transformers.modeling_utils.PreTrainedModel.save_pretrained", _saving_model)
        patching.replace("transformers.modeling_utils.PreTrainedModel.dtype", _saved_type)


def install():
    for name, wrap in (
        ("torch.nn.Module._save_to_state_dict", _saving),
        ("torch.nn.Module._load_from_state_dict", _loading),
        ("torch.optim.Optimizer._process_value_according_to_param_policy", _state_loading),
        ("torch.optim.Adagrad.__init__", _accumulators),
        ("torch.nn.parallel.DistributedDataParallel._sync_buffers", _syncing),
    ):
        patching.replace(name, wrap)
    masters.at_adoption.append(_watch_transformers)
