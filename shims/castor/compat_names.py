"""The names of Colossal-AI that stand elsewhere in Castor, and what to use for those that do not exist (compat.py)."""
import difflib
import pkgutil

# Colossal-AI's version whose names Castor has; colossalai.__version__.
VERSION = "0.5.0"

# Modules of Castor's own.
OWN = {"agent", "compat", "compat_names", "launching", "memory", "names", "parallel", "report"}

# Module: where it is in Castor. The longest prefix counts.
_ELSEWHERE = {
    "legacy": "",
    "legacy.engine.gradient_accumulation": "utils.gradient_accumulation",
    "legacy.initialize": "launching",
    "initialize": "launching",
    "models": "nn",  # coati's; nn.loss
    **{f"accelerator.{name}": "accelerator" for name in ("api", "base_accelerator", "cpu_accelerator", "cuda_accelerator")},
    "lazy.lazy_init": "lazy",
    **dict.fromkeys(("zero.init_ctx", "zero.gemini.colo_init_context", "utils.model.colo_init_context"), "zero"), "utils.model": "utils",
    **dict.fromkeys(("zero.gemini", "zero.gemini.chunk", "zero.gemini.chunk.search_utils"), "gemini"),
    **{f"tensor.d_tensor.{name}": "tensor.d_tensor" for name in ("api", "comm_spec", "layout", "layout_converter", "sharding_spec")},
    **{f"shardformer.shard.{name}": "shardformer.shard" for name in ("shard_config", "grad_ckpt_config", "shardformer")},
    **{f"shardformer.layer.{name}": "shardformer.layer" for name in ("embedding", "linear")},
    **{f"shardformer.policies.{name}": "shardformer.policies" for name in (
        "auto_policy", "base_policy", "bert", "blip2", "bloom", "chatglm2", "command", "deepseek", "deepseek_v3", "falcon", "gpt2", "gptj", "llama", "mistral",
        "mixtral", "opt", "qwen2", "qwen3", "sam", "t5", "vit", "whisper")},
    "logging.logger": "logging",
    **{f"nn.lr_scheduler.{name}": "nn.lr_scheduler" for name in ("cosine", "delayed", "linear", "multistep", "onecycle", "poly", "torch")},
    **{f"nn.optimizer.{name}": "nn.optimizer" for name in (
        "cpu_adam", "distributed_adafactor", "distributed_came", "distributed_lamb", "fused_adam", "fused_lamb", "fused_sgd", "hybrid_adam")},
}

_GEMINI = "use {0}.booster.plugin.GeminiPlugin, or CASTOR_PLUGIN=gemini for a script that imports nothing"
_HYBRID = "use {0}.booster.plugin.HybridParallelPlugin, or CASTOR_TP and CASTOR_PP for a script that imports nothing"
_LOOP = "write the loop: {0}.engine.Engine.execute_schedule runs a batch, and engine.step() the optimizer"
_GROUPS = "use {0}.tensor.ProcessGroup or {0}.cluster.ProcessGroupMesh; launch(config=dict(parallel=...)) makes a pipeline's groups"

# Name: what to use, or why there is nothing. The longest prefix counts; {0} is the name that the script imports Castor by.
_INSTEAD = {
    "zero": _GEMINI,
    "nn.parallel": _GEMINI,
    "zero.LowLevelZeroOptimizer": "use {0}.booster.plugin.LowLevelZeroPlugin",
    "zero.low_level": "use {0}.booster.plugin.LowLevelZeroPlugin",
    "zero.shard_utils": _GEMINI,
    "gemini.ChunkManager": _GEMINI,
    "gemini.GeminiManager": _GEMINI,
    "shardformer": _HYBRID,
    "shardformer.ModelSharder": "use {0}.shardformer.ShardFormer",
    "pipeline.schedule": _HYBRID,
    "pipeline.pipelinable": _HYBRID,
    "pipeline.rpc": _HYBRID,
    "pipeline.schedule.v_schedule": "leave scheduler_nodes out: {0}.booster.plugin.HybridParallelPlugin(pp_style='zbv') computes the order by itself",
    "nn.layer": "use PyTorch's modules; {0}.booster.plugin.HybridParallelPlugin divides them over ranks",
    "amp": "use {0}.booster.Booster(mixed_precision=...), or CASTOR_PRECISION",
    "fx": "use torch.fx, from which it comes",
    "auto_parallel": _HYBRID,
    "autochunk": "use torch.utils.checkpoint, which the engine leaves as it is",
    "inference": "Castor trains; use a server for inference",
    "kernel": "use PyTorch's functions, which have fused kernels; optimizer steps use the library's own",
    "nn.optimizer.galore": "use the library galore-torch",
    "nn.optimizer.distributed_galore": "use the library galore-torch",
    "nn.optimizer.nvme_optimizer": "use CASTOR_OFFLOAD_OPTIM_FRAC and CASTOR_OFFLOAD_DIR",
    "lazy.LazyTensor": "parameters of a {0}.lazy.LazyInitContext are tensors of PyTorch's",
    "utils.colo_device_memory_capacity": "use CASTOR_MEMORY_BUDGET, or CASTOR_DEVICE_BUDGET on a GPU",
    "utils.colo_set_process_memory_fraction": "use CASTOR_MEMORY_BUDGET, or CASTOR_DEVICE_BUDGET on a GPU",
    "cluster.ProcessGroupManager": "use {0}.cluster.ProcessGroupMesh, or torch.distributed.new_group",
    "cluster.DeviceMeshManager": "use {0}.device.device_mesh.DeviceMesh",
    "cluster.device_mesh_manager": "use {0}.device.device_mesh.DeviceMesh",
    "cluster.process_group_manager": "use {0}.cluster.ProcessGroupMesh, or torch.distributed.new_group",
    "device.alpa_dp": "use {0}.booster.plugin.HybridParallelPlugin(num_layers_per_stage=...); without it stages are of equal bytes",
    "interface.pretrained": "{0}.lazy.LazyInitContext and from_pretrained() give parameters their values",
    **dict.fromkeys(("moe", "booster.plugin.MoeHybridParallelPlugin", "booster.plugin.moe_hybrid_parallel_plugin"),
                    "Castor has no expert parallelism: use {0}.booster.plugin.HybridParallelPlugin(tp_size, pp_size), in which each rank of a group has all experts"),
    "context": _GROUPS,
    "core": _GROUPS,
    "communication": "use torch.distributed",
    "registry": "import classes by their names",
    "builder": "import classes by their names",
    "trainer.Trainer": _LOOP,
    "trainer.hooks": _LOOP,
    "utils.safetensors": "use {0}.checkpoint_io.GeneralCheckpointIO.save_model(use_safetensors=True, use_async=True), or the library safetensors",
    "utils.activation_checkpoint": "use torch.utils.checkpoint",
    "utils.checkpoint": "use torch.utils.checkpoint for activations, {0}.booster.Booster.save_model for files",
    "utils.MultiTimer": "use `castor report`, which has the time of each step",
    "utils.profiler": "use `castor report` and `castor top`",
    "tensor.padded_tensor": "{0}.booster.plugin.HybridParallelPlugin pads nothing: it divides an embedding by features where its entries do not divide",
    "tensor.d_tensor": "weights that are packed or padded are not divided: {0}.tensor.d_tensor divides whole dimensions, evenly",
    "tensor.moe_tensor": "Castor has no expert parallelism",
    "testing": "helpers of tests; start ranks with `castor run -- torchrun`",
    "cli": "use `castor run`",
    "accelerator.NpuAccelerator": "Castor knows the CPU and CUDA",
    "accelerator.npu_accelerator": "Castor knows the CPU and CUDA",
    # coati's
    "dataset": "Castor has no data sets; use the script's own",
    "experience_maker": "Castor has the helpers of coati.trainer.utils and coati.models.loss, and no trainers",
    "experience_buffer": "Castor has the helpers of coati.trainer.utils and coati.models.loss, and no trainers",
    "ray": "Castor has the helpers of coati.trainer.utils and coati.models.loss, and no trainers",
    "distributed": "Castor has the helpers of coati.trainer.utils and coati.models.loss, and no trainers",
    "quant": "use {0}.booster.Booster.enable_lora(quantize=True)",
    "models.LoraConfig": "use peft.LoraConfig with {0}.booster.Booster.enable_lora",
    "models.convert_to_lora_module": "use {0}.booster.Booster.enable_lora",
    "models.lora": "use {0}.booster.Booster.enable_lora",
}
_INSTEAD.update(dict.fromkeys((f"nn.optimizer.{name}" for name in ("GaLoreAdamW", "GaLoreAdafactor", "GaLoreAdamW8bit", "DistGaloreAwamW")),
                              _INSTEAD["nn.optimizer.galore"]))
_INSTEAD.update(dict.fromkeys((f"trainer.{name}Trainer" for name in ("SFT", "PPO", "DPO", "ORPO", "KTO", "GRPO", "RewardModel")),
                              "use trl, whose trainers run under `castor run`"))
_SHOWN = 30


def _longest(table, path):
    """(the longest prefix of a dotted path that the table has, the rest); None: there is none."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        found = ".".join(parts[:end])
        if found in table:
            return found, ".".join(parts[end:])
    return None


def real_name(name, target):
    """The module of Castor that "colossalai.legacy.engine" stands for."""
    rest = name.partition(".")[2]
    found = _longest(_ELSEWHERE, rest)
    parts = [target, rest] if found is None else [target, _ELSEWHERE[found[0]], found[1]]
    moved = ".".join(filter(None, parts))
    if found is not None and found[0] == "legacy" and found[1]:
        return real_name(moved, target)
    return moved


def explain(real, name, parent, module):
    """What the error says of `name`, which would be Castor's `real`; `parent`: the module that exists above it."""
    root = name.partition(".")[0] if name != real else "colossalai"
    for path in (name.partition(".")[2], name.partition(".")[2].removeprefix("legacy."), real.partition(".")[2]):
        found = _longest(_INSTEAD, path)
        if found is not None:
            return f"castor: there is no {name}: {_INSTEAD[found[0]].format(root)}"
    held = names_of(module)
    shown = ".".join([name.partition(".")[0], *parent.split(".")[1:]])
    first = real[len(parent) + 1:].partition(".")[0]
    near = difflib.get_close_matches(first, held, n=3, cutoff=0.6)
    if near:
        return f"castor: there is no {name}: the nearest in {shown} is {', '.join(near)}"
    return f"castor: there is no {name}: {shown} has {', '.join(held[:_SHOWN])}{', ...' if len(held) > _SHOWN else ''}"


def names_of(module):
    """What a script may import from a module of Castor, in order."""
    public = getattr(module, "__all__", None)
    found = set(dir(module) if public is None else public)
    found.update(one.name for one in pkgutil.iter_modules(getattr(module, "__path__", None) or []))
    return sorted(name for name in found if not name.startswith("_") and name not in OWN)
