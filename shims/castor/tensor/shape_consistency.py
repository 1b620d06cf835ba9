"""From one ShardingSpec to another one, in steps of one communication (Colossal-AI: colossalai.tensor.shape_consistency)."""
from .. import parallel
from ..agent import core
from .comm_spec import CollectiveCommPattern, CommSpec
from .sharding_spec import ShardingSpec

__all__ = ["ShapeConsistencyManager"]


class ShapeConsistencyManager:
    """Finds and makes conversions. `forward_only`: of tensors without gradients."""

    def __init__(self, forward_only=False):
        self.forward_only = forward_only
        self.cached_spec_pairs_transform_path = {}

    def _made(self, source, found):
        """(CommSpec of a transform, the ShardingSpec after it)."""
        action, after, _ = found
        pattern = next(one for one in CollectiveCommPattern if getattr(core, one.name) == action.pattern)
        spec = CommSpec(pattern, source, None if action.gather_dim < 0 else action.gather_dim, None if action.shard_dim < 0 else action.shard_dim,
                        action.axis, self.forward_only)
        return spec, ShardingSpec._of(source.device_mesh, after)

    def _steps(self, source, orig_cost_dict, pattern):
        result = {}
        for found in parallel.transforms(source.device_mesh._mesh, source._spec, self.forward_only):
            spec, after = self._made(source, found)
            if pattern in (None, spec.comm_pattern):
                result[after] = spec, {name: orig_cost_dict.get(name, 0) + cost for name, cost in found[2].items()}
        return result

    def get_all_all_gather_spec(self, source_spec, orig_cost_dict):
        """{ShardingSpec: (CommSpec, costs)} of what one all-gather makes of `source_spec`; costs are added to orig_cost_dict's."""
        return self._steps(source_spec, orig_cost_dict, CollectiveCommPattern.GATHER_FWD_SPLIT_BWD)

    def get_all_all_to_all_spec(self, source_spec, orig_cost_dict):
        return self._steps(source_spec, orig_cost_dict, CollectiveCommPattern.ALL2ALL_FWD_ALL2ALL_BWD)

    def get_all_shard_spec(self, source_spec, orig_cost_dict):
        return self._steps(source_spec, orig_cost_dict, CollectiveCommPattern.SPLIT_FWD_GATHER_BWD)

    def get_all_one_step_transform_spec(self, source_spec, orig_cost_dict):
        """All three."""
        return self._steps(source_spec, orig_cost_dict, None)

    def shape_consistency(self, source_spec, target_spec):
        """(the ShardingSpecs from the source to the target, both included; the CommSpecs between them; the sum of their costs as a
        dict of forward, backward and total). ValueError: they are of tensors of other shapes."""
        key = str(source_spec.sharding_sequence), str(target_spec.sharding_sequence), source_spec.entire_shape, id(source_spec.device_mesh)
        if key not in self.cached_spec_pairs_transform_path:
            found, cost = parallel.path(source_spec.device_mesh._mesh, source_spec._spec, target_spec._spec, self.forward_only)
            specs, actions = [source_spec], []
            for one in found:
                action, after = self._made(specs[-1], one)
                actions.append(action)
                specs.append(after)
            self.cached_spec_pairs_transform_path[key] = specs, actions, cost
        specs, actions, cost = self.cached_spec_pairs_transform_path[key]
        return list(specs), list(actions), dict(cost)

    def apply_for_autoparallel_runtime(self, tensor, source_spec, target_spec):
        """What `tensor`, this rank's part under the source, becomes under the target. Differentiable."""
        for action in self.shape_consistency(source_spec, target_spec)[1]:
            tensor = action.covert_spec_to_action(tensor)
        return tensor

    def apply(self, tensor_with_sharding_spec, target_spec):
        """The same for a tensor whose attribute `sharding_spec` is its source; the result has the target's."""
        result = self.apply_for_autoparallel_runtime(tensor_with_sharding_spec, tensor_with_sharding_spec.sharding_spec, target_spec)
        result.sharding_spec = target_spec
        return result
