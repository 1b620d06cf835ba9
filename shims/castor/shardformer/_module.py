"""A model as HybridParallelPlugin returns it."""
import contextlib

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves, tree_map

from ..agent import core
from ..checkpoint_io import _ranks
from ..interface import ModelWrapper

__all__ = ["HybridParallelModule", "advised", "cast_parameters", "tell_of_cache"]

_ALWAYS, _THEN_EVERY = 8, 16  # calls whose inputs tensor-parallel ranks compare: the first ones, and every so-manieth


_INNER = {"output_hidden_states": "stages", "output_router_logits": "stages", "output_attentions": "stages and tensor-parallel ranks"}


@contextlib.contextmanager
def advised():
    """What PyTorch says where a model takes a divided weight for a plain tensor, with what to do."""
    try:
        yield
    except RuntimeError as error:
        if "mixed torch.Tensor and" not in str(error):
            raise
        raise RuntimeError("castor: the model computes with a weight that is divided over tensor-parallel ranks, outside of the layer that has it: keep it "
                           "whole, by HybridParallelPlugin(custom_policy={that layer's name: None, ...}) "
                           f"({str(error).splitlines()[0]})") from None


def refuse_inner_outputs(asked, groups):
    """Attentions and hidden states are not on one rank. `asked`: a dict of arguments, or a configuration's attributes."""
    for name, where in _INNER.items() if isinstance(asked, dict) else ():
        if asked.get(name) and (groups.stages > 1 or groups.tensor_size > 1 and "tensor" in where):
            raise ValueError(f"castor: {name}=True, and the model's layers are on several {where}: leave it out, or use pp_size=1 and tp_size=1")


class HybridParallelModule(ModelWrapper):
    """Args: groups: the job's ParallelGroups. staged: a StagedModel, or None. dtype: of parameters in 16 bits, or None. buffers: broadcast_buffers.
    checkpoint_io: gives the CheckpointIO that gathers it."""

    def __init__(self, module, groups, staged, dtype, buffers, checkpoint_io):
        super().__init__(module)
        self._groups, self._staged, self._dtype, self._calls = groups, staged, dtype, 0
        self._optimizer, self._checkpoint_io = None, checkpoint_io  # the optimizer is set by the plugin
        self.floats = {}  # {name: the float value} of 16-bit parameters and buffers that have no master
        persistent = set(module.state_dict().keys())
        self._buffers_sent = [b for name, b in module.named_buffers() if name in persistent] if buffers and groups.data_size > 1 else []
        refuse_inner_outputs(getattr(getattr(module, "config", None), "__dict__", {}), groups)
        for part in staged.parts if staged is not None else ():
            part.before = self._prepared

    @property
    def staged(self):
        return self._staged

    def forward(self, *args, **kwargs):
        if self._staged is not None:
            raise RuntimeError("castor: this model is divided into pipeline stages: call booster.execute_pipeline(data_iter, model, criterion, optimizer) "
                               "instead of the model")
        refuse_inner_outputs(kwargs, self._groups)
        if self._optimizer is None and self.training and torch.is_grad_enabled() and self._groups.data_size > 1 and any(map(_trains, self.parameters())):
            raise RuntimeError("castor: this model was boosted without its optimizer, and gradients would stay each replica's own: give both to "
                               "booster.boost(), or call model.eval() to evaluate")
        if self.training and torch.is_grad_enabled():
            _ranks.trains()
        args, kwargs = self._prepared((args, kwargs))
        with advised():
            return self.cast_back(self.module(*args, **kwargs))

    def no_sync(self):
        return contextlib.nullcontext() if self._optimizer is None else self._optimizer.no_sync()

    def gathered_state(self):
        """On rank 0 the state dict of the whole model; every rank calls it."""
        return self._checkpoint_io().gathered(self)

    def zero_grad(self, set_to_none=True):
        if self._optimizer is None:
            return super().zero_grad(set_to_none)
        return self._optimizer.zero_grad(set_to_none)

    def _prepared(self, data):
        """What the model is called with: float tensors in its type, after tensor-parallel ranks have compared it."""
        if self._groups.tensor_group is not None:
            if self._calls < _ALWAYS or self._calls % _THEN_EVERY == 0:
                self._compare(data)
            self._calls += 1
        if self.training and torch.is_grad_enabled():
            for buffer in self._buffers_sent:
                dist.broadcast(buffer, self._groups.data_ranks[0], group=self._groups.data_group)
        if self._dtype is None:
            return data
        return tree_map(lambda x: x.to(self._dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x, data)

    def cast_back(self, output):
        if self._dtype is None:
            return output
        return tree_map(lambda x: x.float() if isinstance(x, torch.Tensor) and x.dtype is self._dtype else x, output)

    @torch.no_grad()
    def _compare(self, data):
        device = next((p.device for p in self.module.parameters()), torch.device("cpu"))
        tensors = [x for x in tree_leaves(data) if isinstance(x, torch.Tensor)]
        said = [sum(map(_digest, tensors)), _digest(torch.get_rng_state()) if self.training else 0.0]
        own = torch.tensor(said, dtype=torch.float64, device=device)
        every = [torch.empty_like(own) for _ in range(self._groups.tensor_size)]
        dist.all_gather(every, own, group=self._groups.tensor_group)
        for what, column in zip(("inputs", "state of PyTorch's random generator"), torch.stack(every).T.tolist()):
            if len(set(map(repr, column))) > 1:
                raise RuntimeError(f"castor: the {what} of a tensor-parallel group's ranks differ, and its ranks must compute the same: load data with "
                                   "plugin.prepare_dataloader(), or by the data-parallel rank, and seed these ranks alike")


def _trains(parameter):
    return parameter.requires_grad


def _digest(tensor):
    flat = tensor.detach().reshape(-1).double()
    flat = torch.nan_to_num(flat)
    weights = torch.arange(1, flat.numel() + 1, device=flat.device, dtype=torch.float64).remainder_(8191)
    return float((flat * (weights + 1)).sum())


def cast_parameters(model, dtype):
    """Makes the model's float parameters and buffers 16-bit, but those of batch norms. Returns {the new parameter or buffer: the float value}, and
    {the id of an old parameter: the new one}."""
    floats, made = {}, {}
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            continue
        for name, p in module._parameters.items():
            if p is None or not p.is_floating_point() or p.dtype is dtype or p.element_size() < 2:
                continue
            if id(p) not in made:
                new = torch.nn.Parameter(p.detach().to(dtype), requires_grad=p.requires_grad)
                made[id(p)], floats[new] = (p, new), p.detach() if p.element_size() >= 4 else p.detach().float()
            module._parameters[name] = made[id(p)][1]
        for name, b in module._buffers.items():
            if b is not None and b.is_floating_point() and b.element_size() == 4:
                module._buffers[name] = b.to(dtype)
                floats[module._buffers[name]] = b
    return floats, {key: new for key, (_, new) in made.items()}


def tell_of_cache(model):
    """Keys and values of layers of other stages cannot be kept."""
    config = getattr(model, "config", None)
    if getattr(config, "use_cache", False):
        config.use_cache = False
        core.log(2, b"HybridParallelPlugin: use_cache of the model's configuration is off, since each stage has the layers of one part")
