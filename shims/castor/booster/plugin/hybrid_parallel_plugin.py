"""Tensor, pipeline and data parallelism together (Colossal-AI: colossalai.booster.plugin.hybrid_parallel_plugin)."""
import contextlib
import zlib

import torch
import torch.distributed as dist

from ...agent import core, engine_start
from ...agent.precision.masters import DTYPES
from ...cluster.process_groups import require
from ...engine import _agreement, _parallel_groups
from ...interface import OptimizerWrapper
from ...shardformer import ShardConfig, _plan
from ...shardformer._module import HybridParallelModule, cast_parameters, tell_of_cache
from ...shardformer._optimizer import HybridParallelOptimizer
from ...shardformer._pipeline import STYLES, StageManager, execute, make_schedule
from ...shardformer._stages import StagedModel
from ._engine_plugin import scale_of
from .plugin_base import refuse_boosted, tell_of_meaningless
from .pp_plugin_base import PipelinePluginBase

__all__ = ["HybridParallelPlugin"]

_ATTENTION = "PyTorch's own attention and normalization are used, as the model calls them"
_DDP = "gradients are averaged after backward in buckets of ddp_bucket_cap_mb, and unused parameters are found by themselves"
_ORDER = "the schedule's order and messages are computed by the library, which overlaps both with computing"
_BITS = "there are no kernels for 8-bit products and messages"
_MEANINGLESS = {
    "enable_all_optimization": (False, _ATTENTION), "enable_fused_normalization": (False, _ATTENTION), "enable_flash_attention": (False, _ATTENTION),
    "enable_jit_fused": (False, "torch.compile the model's parts yourself"),
    "enable_sequence_parallelism": (False, "each tensor-parallel rank has whole sequences; results are the same"),
    "sequence_parallelism_mode": (None, "each tensor-parallel rank has whole sequences; results are the same"),
    "enable_sequence_overlap": (False, "each tensor-parallel rank has whole sequences"),
    "parallel_output": (True, "outputs are put together on every rank, so that any loss of them is right"),
    "find_unused_parameters": (False, _DDP), "check_reduction": (False, _DDP), "gradient_as_bucket_view": (False, _DDP), "static_graph": (False, _DDP),
    "cpu_offload": (False, "states stay where the parameters are; GeminiPlugin and LowLevelZeroPlugin move them"),
    "overlap_communication": (True, "gradients are averaged when backward has ended"),
    "scheduler_nodes": (None, _ORDER), "enable_metadata_cache": (True, _ORDER), "overlap_p2p": (True, _ORDER),
    "make_vocab_size_divisible_by": (64, "an embedding whose entries do not divide is divided by features, without padding"),
    "overlap_allgather": (False, "new parameters are sent when the step has ended"),
    "fp8_communication": (False, _BITS), "use_fp8": (False, _BITS), "inner_ring_size": (None, "there is no ring attention"),
}


class HybridParallelPlugin(PipelinePluginBase):
    """Divides layers over tp_size ranks, the chain of layers over pp_size stages, and batches over the replicas of that.

    Args:
        tp_size, pp_size: the job's ranks must divide by their product; the quotient is dp_size.
        sp_size: None or 1.
        precision: "fp16", "bf16" or "fp32": of parameters and gradients; masters and states are float.
        zero_stage: 1: each replica has the optimizer's states (and masters) of its share of the parameters; 2: also the gradients.
        num_microbatches, microbatch_size: one of them, for pipelines; the first one decides.
        initial_scale, min_scale, growth_factor, backoff_factor, growth_interval, hysteresis, max_scale: the loss scale of fp16.
        max_norm: each step clips to this norm; 0: it does not.
        broadcast_buffers: replicas take the first one's buffers before each training forward.
        ddp_bucket_cap_mb, zero_bucket_size_in_m: MiB, and with ZeRO 2^20 elements, that are summed at once. communication_dtype: in this type.
        custom_policy: a dict of patterns of modules' names and "col", "row", "gathered", "split" or None, or a Policy of castor.shardformer.policies,
            instead of the plan found.
        gradient_checkpoint_config: a castor.shardformer.PipelineGradientCheckpointConfig: how many of a part's layers are checkpointed, where
            model.gradient_checkpointing_enable() was called before boost().
        pp_style: "1f1b", "interleaved" (with num_model_chunks parts on each stage), "zbv" (as ZB-H1).
        num_layers_per_stage: the number of layers of each part; None: equal bytes.
        dp_outside: rank d * pp * tp + p * tp + t, as for False p * dp * tp + d * tp + t.

    The others have no meaning here; a line says why. Scripts are started by `castor run`, without a plugin."""

    def __init__(self, tp_size, pp_size, sp_size=None, precision="fp16", zero_stage=0, enable_all_optimization=False, enable_fused_normalization=False,
                 enable_flash_attention=False, enable_jit_fused=False, enable_sequence_parallelism=False, sequence_parallelism_mode=None,
                 enable_sequence_overlap=False, parallel_output=True, num_microbatches=None, microbatch_size=None, initial_scale=2**16, min_scale=1,
                 growth_factor=2, backoff_factor=0.5, growth_interval=1000, hysteresis=2, max_scale=2**32, max_norm=0, broadcast_buffers=True,
                 ddp_bucket_cap_mb=25, find_unused_parameters=False, check_reduction=False, gradient_as_bucket_view=False, static_graph=False,
                 zero_bucket_size_in_m=12, cpu_offload=False, communication_dtype=None, overlap_communication=True, custom_policy=None, pp_style="1f1b",
                 num_model_chunks=1, scheduler_nodes=None, num_layers_per_stage=None, gradient_checkpoint_config=None, enable_metadata_cache=True,
                 make_vocab_size_divisible_by=64, dp_outside=True, overlap_p2p=True, overlap_allgather=False, fp8_communication=False, use_fp8=False,
                 inner_ring_size=None):
        given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        require("HybridParallelPlugin")
        super().__init__()
        self._check(given)
        if core.plugin_engine():
            raise engine_start.Conflict(f"castor: CASTOR_PLUGIN={core.options.plugin} runs in this process, and the script makes a HybridParallelPlugin, which "
                                    "divides models itself: leave the plugin out of `castor run`, and use one kind of plugin object in a run")
        tell_of_meaningless(self, given, _MEANINGLESS)
        self.tp_size, self.pp_size, self.sp_size, self.precision, self.zero_stage = tp_size, pp_size, 1, precision, zero_stage
        self.max_norm, self.num_model_chunks, self.pp_style = max_norm or 0.0, num_model_chunks, pp_style
        self.custom_policy, self.num_layers_per_stage = custom_policy, num_layers_per_stage
        self._checkpointed = gradient_checkpoint_config
        if gradient_checkpoint_config is not None and pp_size == 1:
            engine_start.tell("HybridParallelPlugin(gradient_checkpoint_config=...) is for stages: with pp_size=1 the model checkpoints its layers as it does by itself")
        self._scale = scale_of(given)
        self._broadcast_buffers, self._dtype_sent = broadcast_buffers, communication_dtype
        self._bucket = zero_bucket_size_in_m * 4 << 20 if zero_stage else ddp_bucket_cap_mb << 20
        self._agree(given)
        self.groups = _parallel_groups.ParallelGroups(pp_size, tp_size, dp_outside)
        self.pg_mesh, axes = self.groups.mesh, (0, 1) if dp_outside else (1, 0)
        self.dp_group, self.pp_group, self.tp_group = (self.pg_mesh.create_group_along_axis(axis) for axis in (*axes, 2))
        self.dp_size = self.groups.data_size
        self.shard_config = ShardConfig(self.tp_group, enable_tensor_parallelism=tp_size > 1, parallel_output=False)  # outputs are whole
        self.schedule = make_schedule(pp_style, num_microbatches, microbatch_size, num_model_chunks) if pp_size > 1 else None
        self.stage_manager = StageManager(self.groups, num_model_chunks) if pp_size > 1 else None

    @staticmethod
    def _check(given):
        """ValueError: parameters that make no layout."""
        def refuse(name, expected):
            raise ValueError(f"castor: HybridParallelPlugin({name}={given[name]!r}): expected {expected}")

        for name in ("tp_size", "pp_size", "num_model_chunks"):
            if type(given[name]) is not int or given[name] < 1:
                refuse(name, "1 or more")
        if dist.get_world_size() % (given["tp_size"] * given["pp_size"]):
            raise ValueError(f"castor: HybridParallelPlugin(tp_size={given['tp_size']}, pp_size={given['pp_size']}): their product does not divide the job's "
                             f"{dist.get_world_size()} ranks")
        if given["sp_size"] not in (None, 1):
            refuse("sp_size", "None or 1: sequences are not divided; use tp_size")
        if given["precision"] not in DTYPES:
            refuse("precision", "'fp16', 'bf16' or 'fp32'")
        if given["zero_stage"] not in (0, 1, 2):
            refuse("zero_stage", "0, 1 or 2; GeminiPlugin shards parameters as well")
        if given["pp_style"] not in STYLES:
            refuse("pp_style", ", ".join(map(repr, STYLES)))
        if given["num_model_chunks"] > 1 and given["pp_style"] != "interleaved":
            refuse("num_model_chunks", "1, unless pp_style='interleaved'")
        if given["pp_size"] > 1 and given["num_microbatches"] is None and given["microbatch_size"] is None:
            raise ValueError("castor: HybridParallelPlugin(pp_size=2 or more) needs num_microbatches, or microbatch_size")
        for name in ("num_microbatches", "microbatch_size"):
            if given[name] is not None and (type(given[name]) is not int or given[name] < 1):
                refuse(name, "1 or more")

    def _agree(self, given):
        """ValueError on all ranks: they were given different layouts."""
        names = ("tp_size", "pp_size", "precision", "zero_stage", "num_microbatches", "microbatch_size", "pp_style", "num_model_chunks", "dp_outside",
                 "num_layers_per_stage", "max_norm")
        self._same_on_all({name: given[name] for name in names}, "make a HybridParallelPlugin")

    def _same_on_all(self, said, what):
        if self.world_size > 1:
            device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
            _agreement.compare(_agreement.exchange(said, None, device, what), said, "all ranks of a job")

    @property
    def enable_pipeline_parallelism(self):
        return self.pp_size > 1

    def supported_precisions(self):
        return list(DTYPES)

    def control_precision(self):
        return True

    def _data_rank(self):
        return self.groups.data_ranks.index(self.rank)

    def get_checkpoint_io(self):
        from ...shardformer.checkpoint_io import HybridParallelCheckpointIO

        return HybridParallelCheckpointIO(self.groups)

    def no_sync(self, model=None, optimizer=None):
        if model is None and isinstance(optimizer, HybridParallelOptimizer):
            return optimizer.no_sync()
        return super().no_sync(model, optimizer)

    # ---- models

    def configure(self, model, optimizer=None, criterion=None, dataloader=None, lr_scheduler=None):
        refuse_boosted(model)
        shapes = repr([(name, tuple(t.shape), str(t.dtype)) for name, t in model.state_dict().items() if isinstance(t, torch.Tensor)])
        self._same_on_all({"the model": f"{type(model).__name__} {zlib.crc32(shapes.encode()):x}"}, "boost a model")
        model = self._to_device(model)
        names = {id(p): name for name, p in model.named_parameters()}
        if optimizer is not None and any(id(p) not in names for group in optimizer.param_groups for p in group["params"]):
            raise ValueError("castor: the optimizer has parameters that are not the model's: HybridParallelPlugin divides those of the model it is given")
        before = {name: p for name, p in model.named_parameters()}  # keeps what is replaced alive, so that ids stay its own
        now = {id(p): p for p in before.values()}
        layout = self._layout(model, before)
        self._take_first_ranks(model)
        plan = _plan.wanted(model, self.custom_policy, self.shard_config)
        if self.tp_size > 1:
            mesh = torch.distributed.device_mesh.DeviceMesh.from_group(self.groups.tensor_group, next(iter(before.values())).device.type)
            now.update({key: new for key, (new, _) in plan.apply(model, mesh).items()})
        plan.finish()
        staged = None
        if self.pp_size > 1:
            tell_of_cache(model)
            staged = StagedModel(model, self.pp_size, self.groups.stage, self.num_model_chunks, self.num_layers_per_stage)
            staged.checkpoint(self._checkpointed)
        floats, dtype = None, DTYPES[self.precision]
        if dtype is not None:
            floats, replaced = cast_parameters(model, dtype)
            now = {key: replaced.get(id(p), p) for key, p in now.items()}
        here = {id(p) for p in model.parameters()}
        wrapped = HybridParallelModule(model, self.groups, staged, dtype, self._broadcast_buffers, self.get_checkpoint_io)
        wrapped.layout = layout
        self._models.append(wrapped)
        if staged is not None:
            staged.common = {name: model.get_parameter(name) for name in staged.common}
        if optimizer is not None and not isinstance(optimizer, OptimizerWrapper):
            parameters = {key: (names[key], p) for key, p in now.items() if id(p) in here}
            common = {id(p) for p in staged.common.values()} if staged is not None else set()
            layout["groups"] = [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups]
            optimizer = HybridParallelOptimizer(optimizer, parameters, self.groups, common, floats, self._scale if self.precision == "fp16" else None,
                                                self.zero_stage, self.max_norm, self._bucket, self._dtype_sent)
            optimizer.layout = layout
            wrapped._optimizer = optimizer
        stepped = set() if wrapped._optimizer is None else set(wrapped._optimizer._working)
        for name, t in [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]:
            if floats is not None and t in floats and t not in stepped:
                wrapped.floats[name] = floats[t]
        return wrapped, optimizer, criterion, dataloader, lr_scheduler

    @staticmethod
    def _layout(model, parameters):
        """What the whole model was: the names and shapes of its state dict, and of its parameters."""
        state, first, ties = model.state_dict(keep_vars=True), {}, {}
        for name, value in state.items():
            if isinstance(value, torch.nn.Parameter) and first.setdefault(id(value), name) != name:
                ties[name] = first[id(value)]
        return {"ties": ties, "state": {name: (tuple(t.shape), t.dtype) if isinstance(t, torch.Tensor) else None for name, t in state.items()},
                "versions": getattr(state, "_metadata", None), "parameters": {name: (tuple(p.shape), p.dtype) for name, p in parameters.items()}}

    def _take_first_ranks(self, model):
        """Every rank gets rank 0's values; those of a tensor-parallel group draw the same random numbers."""
        if self.world_size == 1:
            return
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                if tensor.is_contiguous():
                    dist.broadcast(tensor.detach(), 0)
                else:
                    whole = tensor.detach().contiguous()
                    dist.broadcast(whole, 0)
                    tensor.copy_(whole)
        if self.groups.tensor_group is not None:
            on_device = dist.get_backend() == "nccl"
            state = torch.get_rng_state().cuda() if on_device else torch.get_rng_state()
            dist.broadcast(state, dist.get_process_group_ranks(self.groups.tensor_group)[0], group=self.groups.tensor_group)
            torch.set_rng_state(state.cpu())
            if on_device:
                state = torch.cuda.get_rng_state().cuda()
                dist.broadcast(state, dist.get_process_group_ranks(self.groups.tensor_group)[0], group=self.groups.tensor_group)
                torch.cuda.set_rng_state(state.cpu())

    def execute_pipeline(self, data_iter, model, criterion, optimizer=None, return_loss=True, return_outputs=False):
        if self.schedule is None:
            raise RuntimeError("castor: this HybridParallelPlugin has no pipeline (pp_size=1): call the model and booster.backward(), or give pp_size=2 or more")
        if not isinstance(model, HybridParallelModule) or model.staged is None:
            raise ValueError("castor: execute_pipeline() of a model that was not boosted by this plugin: give it what booster.boost() returned")
        if optimizer is not None and not isinstance(optimizer, HybridParallelOptimizer):
            raise ValueError("castor: execute_pipeline() with an optimizer that was not boosted: give it what booster.boost() returned")
        with contextlib.ExitStack() as stack:
            before = _parallel_groups.groups()
            stack.callback(_parallel_groups.use, before)
            _parallel_groups.use(self.groups)
            return execute(self.schedule, self.groups, data_iter, model, criterion, optimizer, return_loss, return_outputs, self._bucket)
