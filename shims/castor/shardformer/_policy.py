"""How a script writes down a model's division."""
import abc
import dataclasses


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
