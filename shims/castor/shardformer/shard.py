"""What a script says of a division, and the division of a model outside of a Booster (Colossal-AI: colossalai.shardformer.shard)."""
import dataclasses

import torch
import torch.distributed as dist

__all__ = ["GradientCheckpointConfig", "PipelineGradientCheckpointConfig", "ShardConfig", "ShardFormer"]

_WHOLE = "each tensor-parallel rank has whole sequences; results are the same"
_OWN = "PyTorch's own functions are used, as the model calls them"


@dataclasses.dataclass
class GradientCheckpointConfig:
    """How many of a model's layers are checkpointed, if the model checkpoints its layers (`model.gradient_checkpointing_enable()`).

    Args:
        gradient_checkpointing_ratio: of the layers, from 0 to 1, rounded down."""

    gradient_checkpointing_ratio: float = 0.0

    def get_num_ckpt_layers(self, num_layers):
        """The number of checkpointed layers, the first ones, of `num_layers`."""
        return int(self.gradient_checkpointing_ratio * num_layers)


@dataclasses.dataclass
class PipelineGradientCheckpointConfig(GradientCheckpointConfig):
    """The same for each part of a pipeline; HybridParallelPlugin(gradient_checkpoint_config=...) takes it.

    Args:
        gradient_checkpointing_ratio: of each part's layers, from 0 to 1, rounded down; None: num_ckpt_layers_per_stage says it.
        num_ckpt_layers_per_stage: a number for each of num_stages * num_model_chunks parts, in their order; it counts, and not the ratio.

    ValueError: a number below 0, a ratio outside of [0, 1]."""

    num_ckpt_layers_per_stage: list = None

    def __post_init__(self):
        if self.num_ckpt_layers_per_stage is not None:
            if any(number < 0 for number in self.num_ckpt_layers_per_stage):
                raise ValueError(f"castor: num_ckpt_layers_per_stage is {self.num_ckpt_layers_per_stage}: expected numbers of layers, 0 or more")
        elif self.gradient_checkpointing_ratio is not None and not 0 <= self.gradient_checkpointing_ratio <= 1:
            raise ValueError(f"castor: gradient_checkpointing_ratio is {self.gradient_checkpointing_ratio}: expected a number from 0 to 1")

    def get_num_ckpt_layers(self, stage, num_stages, num_layers, model_chunk_id=0, num_model_chunks=1):
        """How many of the `num_layers` layers of a part are checkpointed, the first ones. ValueError: there are not so many parts, or layers.
        RuntimeError: the configuration has neither numbers nor a ratio."""
        numbers = self.num_ckpt_layers_per_stage
        if numbers is None:
            if self.gradient_checkpointing_ratio is None:
                raise RuntimeError("castor: PipelineGradientCheckpointConfig has no numbers of layers: give num_ckpt_layers_per_stage or "
                                   "gradient_checkpointing_ratio")
            return super().get_num_ckpt_layers(num_layers)
        if len(numbers) != num_stages * num_model_chunks:
            raise ValueError(f"castor: num_ckpt_layers_per_stage has {len(numbers)} numbers: expected one for each of {num_stages} stages x {num_model_chunks} "
                             "model chunks")
        place = stage + model_chunk_id * num_stages
        if not 0 <= place < len(numbers) or numbers[place] > num_layers:
            raise ValueError(f"castor: num_ckpt_layers_per_stage is {numbers}, and part {place} of the pipeline has {num_layers} layers")
        return numbers[place]


@dataclasses.dataclass
class ShardConfig:
    """A division over tensor-parallel ranks.

    Args:
        tensor_parallel_process_group: their group of PyTorch's; None: all ranks.
        enable_tensor_parallelism: False: nothing is divided.
        parallel_output: whether logits that dist_log_prob and its like get may be each rank's part of the vocabulary. A model that
            Castor has divided gives whole ones, so ShardFormer.optimize() sets it to False.
        the others: as in the original, so that policies can read them; Castor divides no sequences, no experts and no stages by them.

    ValueError: sequence parallelism of another mode than the original's."""

    tensor_parallel_process_group: object = None
    sequence_parallel_process_group: object = None
    pipeline_stage_manager: object = None
    enable_tensor_parallelism: bool = True
    enable_all_optimization: bool = False
    enable_fused_normalization: bool = False
    enable_flash_attention: bool = False
    enable_jit_fused: bool = False
    enable_sequence_parallelism: bool = False
    sequence_parallelism_mode: str = None
    parallel_output: bool = True
    make_vocab_size_divisible_by: int = 64
    gradient_checkpoint_config: GradientCheckpointConfig = None
    extra_kwargs: dict = dataclasses.field(default_factory=dict)
    sp_axis: int = None
    pg_mesh: object = None
    inner_ring_size: int = None
    moe_dp_group: object = None
    ep_group: object = None
    fp8_communication: bool = False

    def __post_init__(self):
        modes = ("split_gather", "ring", "all_to_all", "ring_attn")
        if self.enable_sequence_parallelism:
            self.sequence_parallelism_mode = self.sequence_parallelism_mode or modes[0]
            if self.sequence_parallelism_mode not in modes:
                raise ValueError(f"castor: sequence_parallelism_mode is {self.sequence_parallelism_mode!r}: expected one of {', '.join(modes)}")
        else:
            self.sequence_parallelism_mode = None
        if self.enable_all_optimization:
            self.enable_flash_attention = self.enable_jit_fused = True

    @property
    def tensor_parallel_size(self):
        """The number of tensor-parallel ranks; 1 without tensor parallelism, or without a process group."""
        return _ranks(self.tensor_parallel_process_group) if self.enable_tensor_parallelism else 1

    @property
    def sequence_parallel_size(self):
        return _ranks(self.sequence_parallel_process_group) if self.enable_sequence_parallelism else 1

    @property
    def expert_parallel_size(self):
        return 1 if self.ep_group is None else _ranks(self.ep_group)


def _ranks(group):
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


class ShardFormer:
    """Divides models over tensor-parallel ranks, without a Booster.

    Args:
        shard_config: a ShardConfig."""

    def __init__(self, shard_config):
        self.shard_config = shard_config

    def optimize(self, model, policy=None):
        """Divides `model`, an nn.Module that every rank of the group has whole, in place. Ranks take the values of the group's first one.

        Args:
            policy: a castor.shardformer.policies.Policy; None: the division is found from the model (docs/hybrid.md).

        Returns (model, []): divided parameters are DTensors, outputs are put together on every rank, and nothing is shared by stages.
        ValueError: the configuration asks for stages, or for a division that there is not."""
        from ..agent import core

        core.require()
        from ..agent import engine_start
        from . import _plan

        config = self.shard_config
        if config.pipeline_stage_manager is not None:
            raise ValueError("castor: ShardFormer divides layers, not their chain: use castor.booster.plugin.HybridParallelPlugin(pp_size=...) for pipeline stages")
        if config.expert_parallel_size > 1:
            raise ValueError("castor: ShardConfig(ep_group=...): Castor has no expert parallelism")
        reasons = {"enable_sequence_parallelism": _WHOLE, "enable_fused_normalization": _OWN, "enable_flash_attention": _OWN, "enable_jit_fused": _OWN,
                   "fp8_communication": "there are no kernels for 8-bit messages"}
        for name, why in reasons.items():
            if getattr(config, name):
                engine_start.tell(f"ShardConfig({name}=True) has no meaning here: {why}")
        config.parallel_output = False
        size = config.tensor_parallel_size
        group = config.tensor_parallel_process_group if config.tensor_parallel_process_group is not None or size == 1 else dist.group.WORLD
        if size > 1:
            first = dist.get_process_group_ranks(group)[0]
            with torch.no_grad():
                for tensor in [*model.parameters(), *model.buffers()]:
                    whole = tensor.detach().contiguous()
                    dist.broadcast(whole, first, group=group)
                    tensor.copy_(whole)
        plan = _plan.wanted(model, policy, config)
        if size > 1:
            kind = next((p.device.type for p in model.parameters()), "cpu")
            plan.apply(model, torch.distributed.device_mesh.DeviceMesh.from_group(group, kind))
        plan.finish()
        return model, []
