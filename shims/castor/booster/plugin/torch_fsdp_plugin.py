"""PyTorch's fully sharded data parallelism (Colossal-AI: colossalai.booster.plugin.torch_fsdp_plugin)."""
import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffload, MixedPrecision, MixedPrecisionPolicy, ShardingStrategy

from ...agent import starting
from .dp_plugin_base import DPPluginBase
from .plugin_base import tell_of_meaningless

__all__ = ["TorchFSDPPlugin"]

_COPIED = "gathering is a copy within the node's memory, which waits for no other rank"
_MEANINGLESS = {
    "backward_prefetch": (None, _COPIED),
    "sync_module_states": (False, "rank 0's values are always sent to all ranks when a model is wrapped"),
    "fp8_communication": (False, "ranks of a node read each other's memory and send nothing"),
}
_WORDS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
_SAME = {  # strategies: why they are FULL_SHARD here
    ShardingStrategy.SHARD_GRAD_OP: f"parameters are freed after forward as well: {_COPIED}",
    ShardingStrategy.HYBRID_SHARD: "all ranks are on one node, within which it shards fully",
    ShardingStrategy._HYBRID_SHARD_ZERO2: f"all ranks are on one node, and {_COPIED}",
}


class TorchFSDPPlugin(DPPluginBase):
    """CASTOR_PLUGIN=fsdp, as an object: fully_shard on blocks of the model and on the rest. state_dict() is whole on every rank.

    Args:
        process_group: its ranks share the model; None: all.
        sharding_strategy: FULL_SHARD (None); the other ones that shard are the same here; NO_SHARD is a ValueError.
        auto_wrap_policy: which modules are blocks: a policy of torch.distributed.fsdp.wrap, or a function
            (module, recurse, nonwrapped_numel). None: the children of the longest ModuleList or Sequential of like modules.
        mixed_precision: a MixedPrecision, a MixedPrecisionPolicy, or "bf16", "fp16", "fp32": types of the gathered parameters and of the
            sum of gradients. Parameters, p.grad and states keep the model's own type. fp16 wants a GradScaler, as in PyTorch.
        ignored_modules: their parameters stay each rank's own, and their gradients are not averaged.
        param_init_fn: called with each module that has tensors on the meta device, to materialize them; None: to_empty() and
            reset_parameters().
        cpu_offload: no meaning on a machine without a GPU, where parameters are in host memory.

    The others have no meaning here; a line says why."""

    def __init__(self, process_group=None, sharding_strategy=None, cpu_offload=None, auto_wrap_policy=None, backward_prefetch=None, mixed_precision=None,
                 ignored_modules=None, param_init_fn=None, sync_module_states=False, fp8_communication=False):
        given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        self.policy = _policy_of(mixed_precision)
        if sharding_strategy is ShardingStrategy.NO_SHARD:
            raise ValueError("castor: TorchFSDPPlugin(sharding_strategy=NO_SHARD) shards nothing: use TorchDDPPlugin")
        if sharding_strategy not in (None, ShardingStrategy.FULL_SHARD, *_SAME):
            raise ValueError(f"castor: TorchFSDPPlugin(sharding_strategy={sharding_strategy!r}): expected one of "
                             f"{', '.join(s.name for s in (ShardingStrategy.FULL_SHARD, *_SAME))}")
        if auto_wrap_policy is not None and not callable(auto_wrap_policy):
            raise ValueError(f"castor: TorchFSDPPlugin(auto_wrap_policy={auto_wrap_policy!r}): expected a policy or a function")
        super().__init__()
        if process_group is not None:
            self.dp_group, self.dp_size = process_group, dist.get_world_size(process_group)
        self.auto_wrap_policy, self.param_init_fn = auto_wrap_policy, param_init_fn
        self.ignored_modules = list(ignored_modules or ())
        tell_of_meaningless(self, given, _MEANINGLESS)
        if sharding_strategy in _SAME:
            starting.tell(f"TorchFSDPPlugin(sharding_strategy={sharding_strategy.name}) is FULL_SHARD here: {_SAME[sharding_strategy]}")
        if isinstance(cpu_offload, CPUOffload) and cpu_offload.offload_params or cpu_offload is True:
            starting.tell("TorchFSDPPlugin(cpu_offload=...) has no meaning here: parameters are in host memory already")
        starting.start("fsdp", "TorchFSDPPlugin")

    def supported_devices(self):
        return ["cpu"]

    def supported_precisions(self):
        return list(_WORDS)

    def control_precision(self):
        return True

    def configure(self, model, optimizer=None, criterion=None, dataloader=None, lr_scheduler=None):
        from ...agent.fsdp import ddp

        self._materialize(model)
        if self.ignored_modules:
            ignored = {id(t) for m in self.ignored_modules for t in (*m.parameters(), *m.buffers())}
            names = [name for named in (model.named_parameters(), model.named_buffers()) for name, t in named if id(t) in ignored]
            torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
        with ddp.chosen(blocks=self.auto_wrap_policy and self._blocks, policy=self.policy):
            wrapped = self._wrap_model(model)
        return wrapped, self._wrap_optimizer(optimizer), criterion, dataloader, lr_scheduler

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


def _policy_of(given):
    if given is None or isinstance(given, MixedPrecisionPolicy):
        return given
    if isinstance(given, MixedPrecision):
        if given.buffer_dtype is not None:
            starting.tell("TorchFSDPPlugin(mixed_precision=MixedPrecision(buffer_dtype=...)) has no meaning here: fully_shard keeps the type of buffers")
        return MixedPrecisionPolicy(param_dtype=given.param_dtype, reduce_dtype=given.reduce_dtype,
                                    cast_forward_inputs=given.cast_forward_inputs or given.cast_root_forward_inputs)
    if given in _WORDS:
        return MixedPrecisionPolicy(param_dtype=_WORDS[given], reduce_dtype=torch.float32) if _WORDS[given] else None
    raise ValueError(f"castor: TorchFSDPPlugin(mixed_precision={given!r}): expected a MixedPrecision, a MixedPrecisionPolicy, or one of "
                     f"{', '.join(map(repr, _WORDS))}")
