"""Policies: a model's division as a script writes it down (Colossal-AI: colossalai.shardformer.policies).

The original has one class for each model. Here these are one class by all their names: the division is found from the model (docs/hybrid.md), whatever the model is.
HybridParallelPlugin(custom_policy=...) and ShardFormer.optimize() take them, and a script's own subclasses."""
import abc
import dataclasses

__all__ = ["FoundPolicy", "ModulePolicyDescription", "Policy", "SubModuleReplacementDescription", "get_autopolicy"]

_HEADS = {"Classification": ("ForSequenceClassification", "ForTokenClassification"), "Answers": ("ForQuestionAnswering",)}
_CAUSAL = ("", "Model", "ForCausalLM")
_FAMILIES = {
    "Bert": ("", "Model", "ForPreTraining", "LMHeadModel", "ForMaskedLM", "ForNextSentencePrediction", "ForMultipleChoice",
             *_HEADS["Classification"], *_HEADS["Answers"]),
    "Blip": ("",), "Blip2": ("Model", "ForConditionalGeneration"), "ChatGLM": ("", "Model", "ForConditionalGeneration"),
    "GPT2": ("", "Model", "LMHeadModel", "DoubleHeadsModel", *_HEADS["Classification"], *_HEADS["Answers"]),
    "T5": ("BasePolicy", "Model", "ForConditionalGeneration", "Encoder", "ForTokenClassification"), "Sam": ("", "Model"),
    "ViT": ("", "Model", "ForImageClassification", "ForMaskedImageModeling"),
    "Whisper": ("", "Model", "ForConditionalGeneration", "ForAudioClassification"),
    **dict.fromkeys(("Bloom", "Falcon"), (*_CAUSAL, *_HEADS["Classification"], *_HEADS["Answers"])),
    **dict.fromkeys(("GPTJ", "OPT"), (*_CAUSAL, "ForSequenceClassification", "ForQuestionAnswering")),
    **dict.fromkeys(("Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3"), (*_CAUSAL, "ForSequenceClassification")),
    **dict.fromkeys(("Command", "Deepseek", "DeepseekV3"), _CAUSAL),
}


@dataclasses.dataclass
class SubModuleReplacementDescription:
    """A layer that is divided.

    Args:
        suffix: its name within the module that the policy describes, such as "attn.q_proj" or "experts[0].linear".
        target_module: a class of castor.shardformer.layer.
        kwargs: of its from_native_module().
        ignore_if_not_exist: a module without such a layer is no error."""

    suffix: str
    target_module: type
    kwargs: dict = None
    ignore_if_not_exist: bool = False


@dataclasses.dataclass
class ModulePolicyDescription:
    """What changes in modules of a class.

    Args:
        attribute_replacement: {"attn.num_heads": its value on each rank}; a name that a module lacks is passed over.
        param_replacement: functions that are called with the module.
        sub_module_replacement: SubModuleReplacementDescriptions.
        method_replacement: {a method's name: a function that takes `self` first}."""

    attribute_replacement: dict = None
    param_replacement: list = None
    sub_module_replacement: list = None
    method_replacement: dict = None


class Policy(abc.ABC):
    """A division that a script writes. `model` and `shard_config` are set when it is used, before the methods are called."""

    def __init__(self):
        self.shard_config = self.model = self.is_causal = None

    def set_model(self, model):
        self.model = model

    def set_shard_config(self, shard_config):
        self.shard_config = shard_config
        self.config_sanity_check()

    @property
    def pipeline_stage_manager(self):
        """None: HybridParallelPlugin divides the chain of layers into stages by itself."""
        return None if self.shard_config is None else self.shard_config.pipeline_stage_manager

    @abc.abstractmethod
    def config_sanity_check(self):
        """Raises if the ShardConfig does not suit the model."""

    @abc.abstractmethod
    def preprocess(self):
        """Changes the model before it is divided, in place, and returns it."""

    @abc.abstractmethod
    def module_policy(self):
        """{a module, its class or that class's name: ModulePolicyDescription}."""

    @abc.abstractmethod
    def postprocess(self):
        """Changes the model after it was divided, in place, and returns it."""

    def append_or_create_submodule_replacement(self, description, policy, target_key):
        """Adds SubModuleReplacementDescriptions (one, or a list) to `policy`, what module_policy() returns, for a class. Returns `policy`."""
        held = policy.setdefault(target_key, ModulePolicyDescription())
        held.sub_module_replacement = [*(held.sub_module_replacement or []), *([description] if isinstance(description, SubModuleReplacementDescription) else description)]
        return policy

    def append_or_create_method_replacement(self, description, policy, target_key):
        """Adds {a method's name: a function} to `policy` for a class. Returns `policy`."""
        held = policy.setdefault(target_key, ModulePolicyDescription())
        held.method_replacement = {**(held.method_replacement or {}), **description}
        return policy

    def get_held_layers(self):
        raise NotImplementedError("castor: a policy holds no layers of a stage: HybridParallelPlugin(pp_size=..., num_layers_per_stage=...) divides the chain of layers")

    def get_shared_params(self):
        """[]: HybridParallelPlugin finds what stages share by itself."""
        return []

    def tie_weight_check(self):
        """Whether the model's input and output embeddings are one weight."""
        first, last = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        return first is not None and last is not None and first.weight is last.weight


class FoundPolicy(Policy):
    """The division that is found from the model."""

    def config_sanity_check(self):
        pass

    def preprocess(self):
        return self.model

    def module_policy(self):
        """{the model: the layers that are divided, by their names in it}; {} on one rank."""
        from . import _plan

        size = self.shard_config.tensor_parallel_size
        return _plan.find(self.model, size).described(self.model) if size > 1 else {}

    def postprocess(self):
        return self.model


for _family, _endings in _FAMILIES.items():
    for _ending in _endings:
        _name = f"{_family}{_ending.removesuffix('Policy')}Policy"
        globals()[_name] = type(_name, (FoundPolicy,), {"__module__": __name__, "__doc__": FoundPolicy.__doc__})
        __all__.append(_name)


def get_autopolicy(model):
    """A policy for any model, an nn.Module: of the class that has its class's name (LlamaForCausalLMPolicy), where there is one."""
    kind = globals().get(type(model).__name__ + "Policy")
    return kind() if isinstance(kind, type) and issubclass(kind, FoundPolicy) else FoundPolicy()
