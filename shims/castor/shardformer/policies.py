"""Policies: a model's division as a script writes it down (Colossal-AI: colossalai.shardformer.policies).

The original has one class for each model. Here these are one class by all their names: the division is found from the model (docs/hybrid.md), whatever the model is.
HybridParallelPlugin(custom_policy=...) and ShardFormer.optimize() take them, and a script's own subclasses."""
from ._policy import ModulePolicyDescription, Policy, SubModuleReplacementDescription

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
