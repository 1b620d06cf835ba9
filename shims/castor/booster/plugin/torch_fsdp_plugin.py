"""PyTorch's fully sharded data parallelism (Colossal-AI: colossalai.booster.plugin.torch_fsdp_plugin)."""
import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffload, MixedPrecision, MixedPrecisionPolicy, ShardingStrategy

from ...accelerator import get_accelerator
from ...agent import core, engine_start
from ...agent.precision.masters import DTYPES
from ...interface import OptimizerWrapper
from .dp_plugin_base import DPPluginBase
from .plugin_base import refuse_boosted, tell_of_meaningless

__all__ = ["TorchFSDPPlugin"]

_SENT = "rank 0's values are always sent to all ranks when a model is wrapped"
_ONCE = "a node keeps parameters, gradients and states once, and nothing is gathered"
_MEANINGLESS = {
    "backward_prefetch": (None, _ONCE),
    "auto_wrap_policy": (None, _ONCE),
    "sharding_strategy": (None, "on one node all strategies are the same; on several CASTOR_SHARD decides"),
    "cpu_offload": (None, "parameters are in host memory already"),
    "sync_module_states": (False, _SENT),
    "fp8_communication": (False, "ranks of a node read each other's memory and send nothing"),
}
_MEANINGLESS_ON_DEVICES = {
    "backward_prefetch": (None, "fully_shard gathers the block before in backward by itself"),
    "sync_module_states": (False, _SENT),
    "fp8_communication": (False, "parameters are gathered in the type of mixed_precision"),
}
_STRATEGIES = (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2)


class TorchFSDPPlugin(DPPluginBase):
    """CASTOR_PLUGIN=fsdp, as an object. On CPUs the node store keeps parameters, gradients and states, as under GeminiPlugin; state_dict() is whole
    on every rank. On devices it is PyTorch's fully_shard, on blocks of the model and on the rest: state_dict() has DTensors, and every rank must
    call forward passes and save_model().

    Args:
        process_group: its ranks share the model; None: all.
        sharding_strategy: FULL_SHARD (None); NO_SHARD is a ValueError. On devices SHARD_GRAD_OP keeps blocks between forward and backward, and
            HYBRID_SHARD shards within each node (LOCAL_WORLD_SIZE).
        auto_wrap_policy: on devices, which modules are blocks: a policy of torch.distributed.fsdp.wrap, or a function
            (module, recurse, nonwrapped_numel). None: the children of the longest ModuleList or Sequential of like modules.
        mixed_precision: a MixedPrecision, a MixedPrecisionPolicy, or "bf16", "fp16", "fp32". On devices these are types of the gathered
            parameters and of the sum of gradients; parameters, p.grad and states keep the model's own type, and fp16 wants a GradScaler. On CPUs
            it is CASTOR_PRECISION: parameters have 16 bits, with float masters, and fp16 has a loss scale.
        ignored_modules: their parameters stay each rank's own, and their gradients are not averaged.
        param_init_fn: called with each module that has tensors on the meta device, to materialize them; None: to_empty() and
            reset_parameters().
        cpu_offload: a CPUOffload, or True: on devices parts, gradients and states are in host memory.

    The others have no meaning here; a line says why."""

    def __init__(self, process_group=None, sharding_strategy=None, cpu_offload=None, auto_wrap_policy=None, backward_prefetch=None, mixed_precision=None,
                 ignored_modules=None, param_init_fn=None, sync_module_states=False, fp8_communication=False):
        given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        self.policy = _policy_of(mixed_precision)
        if sharding_strategy is ShardingStrategy.NO_SHARD:
            raise ValueError("castor: TorchFSDPPlugin(sharding_strategy=NO_SHARD) shards nothing: use TorchDDPPlugin")
        if sharding_strategy not in (None, *_STRATEGIES):
            raise ValueError(f"castor: TorchFSDPPlugin(sharding_strategy={sharding_strategy!r}): expected one of {', '.join(s.name for s in _STRATEGIES)}")
        if auto_wrap_policy is not None and not callable(auto_wrap_policy):
            raise ValueError(f"castor: TorchFSDPPlugin(auto_wrap_policy={auto_wrap_policy!r}): expected a policy or a function")
        super().__init__()
        if process_group is not None:
            self.dp_group, self.dp_size = process_group, dist.get_world_size(process_group)
        self.auto_wrap_policy, self.param_init_fn = auto_wrap_policy, param_init_fn
        self.ignored_modules = list(ignored_modules or ())
        self.sharding_strategy = sharding_strategy or ShardingStrategy.FULL_SHARD
        self.cpu_offload = isinstance(cpu_offload, CPUOffload) and cpu_offload.offload_params or cpu_offload is True
        self._on_devices = self.dp_size > 1 and get_accelerator().get_current_device().type == "cuda"
        if self._on_devices and self.cpu_offload and not _adds_on_cpus(self.dp_group):
            raise ValueError("castor: TorchFSDPPlugin(cpu_offload=...) adds up norms in host memory, for which the process group needs gloo too: make it with "
                             "the backend \"cpu:gloo,cuda:nccl\"")
        tell_of_meaningless(self, given, _MEANINGLESS_ON_DEVICES if self._on_devices else _MEANINGLESS)
        if not self._on_devices:
            engine_start.start("fsdp", "TorchFSDPPlugin")
        elif core.plugin_engine() and core.options.plugin != "fsdp":
            raise engine_start.Conflict(f"castor: the plugin {core.options.plugin} runs in this process, and TorchFSDPPlugin shards models itself: use one of "
                                    "them, or train in two runs")

    def supported_devices(self):
        return ["cpu", "cuda"]

    def supported_precisions(self):
        return list(DTYPES)

    def control_precision(self):
        return True

    def configure(self, model, optimizer=None, criterion=None, dataloader=None, lr_scheduler=None):
        self._materialize(model)
        if self._on_devices:
            return *self._shard(model, optimizer), criterion, dataloader, lr_scheduler
        if self.ignored_modules:
            ignored = {id(t) for t in self._ignored()}
            names = [name for named in (model.named_parameters(), model.named_buffers()) for name, t in named if id(t) in ignored]
            torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
        engine_start.use_precision(self.policy and _word_of(self.policy.param_dtype))
        return *self._train(model, optimizer), criterion, dataloader, lr_scheduler

    def _ignored(self):
        return [t for m in self.ignored_modules for t in (*m.parameters(), *m.buffers())]

    def _shard(self, model, optimizer):
        from ._fully_sharded import FullyShardedModel, FullyShardedOptimizer, find_blocks

        refuse_boosted(model)
        inner = getattr(model, "_orig_mod", model)
        blocks = find_blocks(inner, self.auto_wrap_policy and self._blocks)
        strategy = self.sharding_strategy.name
        wrapped = FullyShardedModel(model, blocks, self.dp_group, get_accelerator().get_current_device(), "HYBRID" in strategy, self.policy,
                                    strategy in ("FULL_SHARD", "HYBRID_SHARD"), self.cpu_offload, self._ignored())
        core.log(3, f"fsdp: fully_shard over {self.dp_size} ranks: {len(blocks)} blocks, and the rest".encode())
        self._models.append(wrapped)
        if optimizer is None or isinstance(optimizer, OptimizerWrapper):
            return wrapped, optimizer
        engine_start.take_up(optimizer)
        return wrapped, FullyShardedOptimizer(optimizer, wrapped.moved)

    def _materialize(self, model):
        for module in model.modules():
            if not any(t.is_meta for t in (*module.parameters(recurse=False), *module.buffers(recurse=False))):
                continue
            if self.param_init_fn is not None:
                self.param_init_fn(module)
            elif hasattr(module, "reset_parameters"):
                module.to_empty(device="cpu", recurse=False)
                module.reset_parameters()
            else:
                raise ValueError(f"castor: {type(module).__name__} has parameters on the meta device and no reset_parameters(): give "
                                 "TorchFSDPPlugin a param_init_fn that materializes it")

    def _blocks(self, root):
        """The modules that the policy wants sharded by themselves, inner ones first."""
        if hasattr(self.auto_wrap_policy, "_run_policy"):
            wanted = self.auto_wrap_policy._run_policy(root, set(self.ignored_modules), {})
            return [m for m in reversed(list(root.modules())) if m in wanted and m is not root]
        found = []

        def visit(module):
            numel = sum(p.numel() for p in module.parameters())
            if module in self.ignored_modules or not self.auto_wrap_policy(module=module, recurse=True, nonwrapped_numel=numel):
                return 0
            inside = sum(visit(child) for child in module.children())
            if module is root or not self.auto_wrap_policy(module=module, recurse=False, nonwrapped_numel=numel - inside):
                return inside
            found.append(module)
            return numel

        visit(root)
        return found


def _adds_on_cpus(group):
    try:
        return group._get_backend(torch.device("cpu")) is not None
    except RuntimeError:
        return False


def _word_of(dtype):
    """CASTOR_PRECISION's, for parameters that are computed with in this type."""
    for word, other in DTYPES.items():
        if dtype is other or word == "fp32" and dtype is torch.float32:
            return word
    raise ValueError(f"castor: TorchFSDPPlugin(mixed_precision=...) with parameters of {dtype}: expected torch.float32, bfloat16 or float16")


def _policy_of(given):
    if given is None or isinstance(given, MixedPrecisionPolicy):
        return given
    if isinstance(given, MixedPrecision):
        if given.buffer_dtype is not None:
            engine_start.tell("TorchFSDPPlugin(mixed_precision=MixedPrecision(buffer_dtype=...)) has no meaning here: fully_shard keeps the type of buffers")
        return MixedPrecisionPolicy(param_dtype=given.param_dtype, reduce_dtype=given.reduce_dtype,
                                    cast_forward_inputs=given.cast_forward_inputs or given.cast_root_forward_inputs)
    if given in DTYPES:
        return MixedPrecisionPolicy(param_dtype=DTYPES[given], reduce_dtype=torch.float32) if DTYPES[given] else None
    raise ValueError(f"castor: TorchFSDPPlugin(mixed_precision={given!r}): expected a MixedPrecision, a MixedPrecisionPolicy, or one of "
                     f"{', '.join(map(repr, DTYPES))}")
