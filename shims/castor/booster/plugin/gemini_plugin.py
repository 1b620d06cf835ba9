"""Chunks of parameters, gradients and states over device, RAM and disk (Colossal-AI: colossalai.booster.plugin.gemini_plugin)."""
from ... import gemini
from ._engine_plugin import EnginePlugin

__all__ = ["GeminiPlugin"]

_ONE_STORE = "one process's data lies once on its node, whoever reads it"
_SHARDFORMER = "modules are PyTorch's own, which has such kernels; HybridParallelPlugin divides a model over ranks"
_MEANINGLESS = {
    "chunk_init_device": (None, "parameters are adopted where the script has made them"),
    "max_prefetch": (0, "the engine looks ahead as far as the measured bandwidth asks for"),
    "master_weights": (True, "float masters are always kept, for the optimizer and for checkpoints"),
    "pin_memory": (False, "memory is pinned where the driver copies from it"),
    "strict_ddp_mode": (False, _ONE_STORE),
    "memstats": (None, "the engine measures the first step by itself"),
    "gpu_margin_mem_ratio": (0.0, "model data comes back to a device as far as steady_cuda_cap_ratio lets it"),
    "extra_dp_size": (1, "on one node every rank reads the same data; on several, CASTOR_SHARD=node keeps a copy per node"),
    "enable_all_optimization": (False, _SHARDFORMER),
    "enable_fused_normalization": (False, _SHARDFORMER),
    "enable_flash_attention": (False, _SHARDFORMER),
    "enable_sequence_parallelism": (False, _SHARDFORMER),
    "enable_jit_fused": (False, _SHARDFORMER),
    "enable_async_reduce": (True, "gradients are always summed while backward goes on"),
    "use_fp8": (False, "there are no kernels for 8-bit products"),
    "fp8_communication": (False, "ranks of a node read each other's memory and send nothing"),
}


class GeminiPlugin(EnginePlugin):
    """CASTOR_PLUGIN=gemini, as an object.

    Args:
        chunk_config_dict: what search_chunk_configuration() returned, as the chunks' sizes; None: they are searched for.
        placement_policy: "auto": what does not fit the budget leaves (CASTOR_MEMORY_BUDGET, CASTOR_DEVICE_BUDGET). "static": the
            fractions below; with their defaults nothing leaves.
        enable_gradient_accumulation: accepted; gradients of several backward passes are always added.
        shard_param_frac, offload_optim_frac, offload_param_frac: of "static" (docs/placement.md).
        warmup_non_model_data_ratio, steady_cuda_cap_ratio: of "auto".
        precision: "fp16", "bf16" or "fp32": of parameters and gradients; float masters and states are kept for the optimizer.
        force_outputs_fp32: accepted; outputs are always float.
        search_range_m, hidden_dim, min_chunk_size_m: of the search for the chunks' size, in units of 2^20 elements; the interval is
            hidden_dim or 1024 elements.
        initial_scale, min_scale, growth_factor, backoff_factor, growth_interval, hysteresis, max_scale: the loss scale of fp16.
        max_norm, norm_type: each step clips to this norm; 0: it does not.
        tp_size: 1; ValueError: more.
        verbose: accepted; the chunks' size is logged in any case.

    The others have no meaning here; a line says why."""

    def __init__(self, chunk_config_dict=None, chunk_init_device=None, placement_policy="static", enable_gradient_accumulation=False, max_prefetch=0,
                 shard_param_frac=1.0, offload_optim_frac=0.0, offload_param_frac=0.0, warmup_non_model_data_ratio=0.8,
                 steady_cuda_cap_ratio=0.9, precision="fp16", master_weights=True, pin_memory=False, force_outputs_fp32=False,
                 strict_ddp_mode=False, search_range_m=32, hidden_dim=None, min_chunk_size_m=32, memstats=None, gpu_margin_mem_ratio=0.0,
                 initial_scale=2**16, min_scale=1, growth_factor=2, backoff_factor=0.5, growth_interval=1000, hysteresis=2, max_scale=2**32,
                 max_norm=0.0, norm_type=2.0, tp_size=1, extra_dp_size=1, enable_all_optimization=False, enable_fused_normalization=False,
                 enable_flash_attention=False, enable_sequence_parallelism=False, enable_jit_fused=False, enable_async_reduce=True,
                 use_fp8=False, verbose=False, fp8_communication=False):
        given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        if placement_policy not in ("static", "auto"):
            raise ValueError(f"castor: GeminiPlugin(placement_policy={placement_policy!r}): expected 'static' or 'auto'")
        if tp_size != 1:
            raise ValueError(f"castor: GeminiPlugin(tp_size={tp_size}): tensor parallelism is HybridParallelPlugin's (tp_size={tp_size}, pp_size=1)")
        self._search = None
        if (search_range_m, hidden_dim, min_chunk_size_m) != (32, None, 32):
            self._search = {"search_range_m": search_range_m, "search_interval": hidden_dim or 1024, "min_chunk_size_m": min_chunk_size_m}
        self._chunks = chunk_config_dict
        super().__init__("gemini", self._placement(given), given, _MEANINGLESS)

    @staticmethod
    def _placement(given):
        policy = given["placement_policy"]
        fractions = {"shard_param_frac": 1.0, "offload_optim_frac": 0.0, "offload_param_frac": 0.0}
        changed = {name for name, default in fractions.items() if given[name] != default}
        if policy == "static":
            if not changed:
                return {}
            return {"CASTOR_PLACEMENT": "static", **{f"CASTOR_{name.upper()}": str(given[name]) for name in changed}}
        if changed:
            raise ValueError(f"castor: GeminiPlugin(placement_policy='auto') decides by itself: leave out {', '.join(sorted(changed))}, or use 'static'")
        ratios = {"CASTOR_WARMUP_NON_MODEL_DATA_RATIO": ("warmup_non_model_data_ratio", 0.8), "CASTOR_STEADY_CAP_RATIO": ("steady_cuda_cap_ratio", 0.9)}
        return {option: str(given[name]) for option, (name, default) in ratios.items() if given[name] != default}

    def configure(self, model, optimizer=None, criterion=None, dataloader=None, lr_scheduler=None):
        if self._chunks is None and self._search is not None:
            self._chunks = gemini.search_chunk_configuration(model, **self._search)[0]
        if self._chunks is not None:
            gemini.use_chunk_configuration(self._chunks, 4 if self.precision == "fp32" else 2)
        return super().configure(model, optimizer, criterion, dataloader, lr_scheduler)
