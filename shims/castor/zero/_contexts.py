"""Contexts in which models are built (Colossal-AI: colossalai.legacy.zero.init_ctx and colossalai.zero.ColoInitContext): lazy initialization, and what else they do."""
import weakref

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from ..agent import core, engine_start
from ..lazy import LazyInitContext

__all__ = ["ColoInitContext", "ZeroInitContext"]


class _Watched(LazyInitContext):
    """Knows the modules that get parameters inside of it."""

    def __enter__(self):
        self._modules = weakref.WeakSet()
        self._hook = register_module_parameter_registration_hook(self._remember)
        return super().__enter__()

    def _remember(self, module, name, parameter):
        self._modules.add(module)

    def __exit__(self, *raised):
        self._hook.remove()
        super().__exit__(*raised)

    def _parameters(self):
        """Those of the modules that are still there, each once."""
        return list({id(p): p for module in self._modules for p in module._parameters.values() if p is not None}.values())


class ColoInitContext(_Watched):
    """Lazy initialization (castor.lazy). When the context ends, parameters of the models built in it are moved.

    Args:
        device: where parameters and buffers are afterwards.
        dtype: of float parameters afterwards: they are initialized in their own type.
        default_pg: accepted.
        default_dist_spec: None or a ReplicaSpec. ValueError: another one; give the parameter its specification by set_tensor_spec() afterwards."""

    def __init__(self, device=torch.device("cpu"), dtype=torch.float, default_pg=None, default_dist_spec=None):
        super().__init__()
        if default_dist_spec is not None and type(default_dist_spec).__name__ != "ReplicaSpec" and \
                getattr(getattr(default_dist_spec, "placement", None), "name", None) != "REPLICATE":
            raise ValueError("castor: ColoInitContext(default_dist_spec=...): models are built whole; use castor.booster.plugin.HybridParallelPlugin, or give each "
                             "parameter its specification by set_tensor_spec()")
        self._to, self._dtype = torch.device(device), dtype

    def __exit__(self, *raised):
        if raised[0] is None:
            for p in self._parameters():
                p.data = p.data.to(self._to, self._dtype if p.is_floating_point() else p.dtype)
            for module in self._modules:
                for one in module.modules():
                    for b in one._buffers.values():
                        if b is not None:
                            b.data = b.data.to(self._to)
        super().__exit__(*raised)


class ZeroInitContext(_Watched):
    """Lazy initialization (castor.lazy). `model_numel_tensor` has the number of elements of the parameters when the context ends.

    Args:
        target_device: where parameters are afterwards.
        shard_strategy, shard_param: accepted: the node keeps parameters once, and the plugin divides them.
        seed: of PyTorch's generators inside of the context, on every rank; their states are restored when it ends.
        default_dtype: of parameters that name none.
        bf16: accepted. Parameters keep their type; a line says that CASTOR_PRECISION trains in 16 bits.
        model_numel_tensor: an int64 tensor of one element."""

    def __init__(self, target_device=torch.device("cpu"), shard_strategy=None, seed=2**10 - 1, shard_param=False, default_dtype=None, bf16=False,
                 model_numel_tensor=None):
        super().__init__()
        self.target_device, self.shard_param, self.seed = torch.device(target_device), shard_param, seed
        self.model_numel_tensor = torch.zeros(1, dtype=torch.long) if model_numel_tensor is None else model_numel_tensor
        self._default_dtype, self._states = default_dtype, None
        core.require()
        engine_start.tell(f"ZeroInitContext leaves parameters in their type: CASTOR_PRECISION={'bf16' if bf16 else 'fp16'} trains in 16 bits")

    def __enter__(self):
        self._states = torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [], torch.get_default_dtype()
        torch.manual_seed(self.seed)
        if self._default_dtype is not None:
            torch.set_default_dtype(self._default_dtype)
        return super().__enter__()

    def __exit__(self, *raised):
        host, devices, dtype = self._states
        torch.set_default_dtype(dtype)
        torch.set_rng_state(host)
        if devices:
            torch.cuda.set_rng_state_all(devices)
        if raised[0] is None:
            for p in self._parameters():
                p.data = p.data.to(self.target_device)
            self.model_numel_tensor.fill_(sum(p.numel() for p in self._parameters()))
        super().__exit__(*raised)
