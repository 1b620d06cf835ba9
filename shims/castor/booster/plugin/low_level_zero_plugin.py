"""ZeRO 1 and 2 (Colossal-AI: colossalai.booster.plugin.low_level_zero_plugin)."""
from ._engine_plugin import EnginePlugin

__all__ = ["LowLevelZeroPlugin"]

_SUMS = "gradients are summed through the node's memory, parameter by parameter, while backward goes on"
_MEANINGLESS = {
    "reduce_bucket_size_in_m": (12, _SUMS),
    "communication_dtype": (None, _SUMS),
    "overlap_communication": (True, _SUMS),
    "overlap_allgather": (False, "ranks of a node read new parameters where their owner wrote them"),
    "master_weights": (True, "float masters are always kept, for the optimizer and for checkpoints"),
    "verbose": (False, "castor's log tells what is done (CASTOR_LOG_LEVEL=debug: more)"),
    "cast_inputs": (True, "modules with 16-bit parameters take no float inputs, so they are always cast"),
    "fp8_communication": (False, "ranks of a node read each other's memory and send nothing"),
    "use_fp8": (False, "there are no kernels for 8-bit products"),
    "extra_dp_size": (1, "on one node every rank reads the same data; on several, CASTOR_SHARD=node keeps a copy per node"),
}


class LowLevelZeroPlugin(EnginePlugin):
    """CASTOR_PLUGIN=zero1 or zero2, as an object.

    Args:
        stage: 1: each node (or rank on a device) keeps its part of the optimizer's states; 2: of the gradients, too.
        precision: "fp16", "bf16" or "fp32": of parameters and gradients; float masters and states are kept for the optimizer.
        initial_scale, min_scale, growth_factor, backoff_factor, growth_interval, hysteresis, max_scale: the loss scale of fp16.
        max_norm, norm_type: each step clips to this norm; 0: it does not.
        cpu_offload: the optimizer's states are on disk while they are not used; those of a device's data in host memory.

    The others have no meaning here; a line says why."""

    def __init__(self, stage=1, precision="fp16", initial_scale=2**32, min_scale=1, growth_factor=2, backoff_factor=0.5, growth_interval=1000,
                 hysteresis=2, max_scale=2**32, max_norm=0.0, norm_type=2.0, reduce_bucket_size_in_m=12, communication_dtype=None,
                 overlap_communication=True, overlap_allgather=False, cpu_offload=False, master_weights=True, verbose=False, cast_inputs=True,
                 fp8_communication=False, use_fp8=False, extra_dp_size=1):
        given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        if stage not in (1, 2):
            raise ValueError(f"castor: LowLevelZeroPlugin(stage={stage!r}): expected 1 (states) or 2 (gradients, too); GeminiPlugin shards parameters as well")
        self.stage = stage
        options = {"CASTOR_PLACEMENT": "static", "CASTOR_OFFLOAD_OPTIM_FRAC": "1"} if cpu_offload else {}
        super().__init__(f"zero{stage}", options, given, _MEANINGLESS)
