"""Layers that are divided over tensor-parallel ranks, one by one (Colossal-AI: colossalai.shardformer.layer).

Each rank's layer has its part of the weight as a plain parameter. HybridParallelPlugin and ShardFormer divide whole models by the same code; in a policy
these classes say how a layer is divided."""
import torch
import torch.distributed as dist

from .._layers import COLUMN, GATHERED, ROW, SPLIT, Divided, DividedEmbedding, dim_of, part_of
from .loss import cross_entropy_1d, dist_cross_entropy, dist_log_prob, dist_log_prob_1d

__all__ = ["Embedding1D", "Linear1D_Col", "Linear1D_Row", "VocabParallelEmbedding1D", "VocabParallelLMHead1D", "cross_entropy_1d", "dist_cross_entropy",
           "dist_log_prob", "dist_log_prob_1d"]

# Of the original's parameters: those that change results or types are refused, the others only change speed.
_REFUSED = {"seq_parallel_mode": "each rank has whole sequences", "skip_bias_add": "add the bias by itself: give a layer without one"}
_SPEED = {"seq_parallel_dim", "overlap", "fp8_communication", "use_zbv", "make_vocab_size_divisible_by"}


class _Layer:
    """`castor_use`: how the layer is divided. The class attributes: what it is made of, and the parameter that chooses between two uses."""

    native, kinds, chosen_by = torch.nn.Linear, ("linear", "conv1d"), None

    @classmethod
    def use_of(cls, options):
        """COLUMN and so on for the parameters of from_native_module(). ValueError, TypeError: one has no meaning here, or is unknown."""
        for name, value in options.items():
            if name in _REFUSED and value:
                raise ValueError(f"castor: {cls.__name__}({name}={value!r}): expected {type(value)() if name == 'skip_bias_add' else None}; {_REFUSED[name]}")
            if name not in _REFUSED and name not in _SPEED and (cls.chosen_by is None or name != cls.chosen_by[0]):
                raise TypeError(f"castor: {cls.__name__} has no parameter {name!r}")
        if cls.chosen_by is None:
            return cls.uses[True]
        name, default = cls.chosen_by
        use = cls.uses[bool(options.get(name, default))]
        if use is None:
            raise ValueError(f"castor: {cls.__name__}({name}={options[name]!r}): expected {default}")
        return use

    @classmethod
    def from_native_module(cls, module, process_group=None, **options):
        """This rank's part of `module`, which every rank of process_group (None: of all) has with the same values; it stays as it is.

        TypeError: it is no such layer. ValueError: its weight does not divide by the group's ranks."""
        if not isinstance(module, cls.native):
            raise TypeError(f"castor: {cls.__name__}.from_native_module() of a {type(module).__name__}: expected an nn.{cls.native.__name__}")
        made = cls.__new__(cls)
        made.__dict__ = dict(module.__dict__)
        made._parameters = dict(module._parameters)
        made._divide(cls.use_of(options), process_group)
        return made

    def _divide(self, use, group):
        size, dim = dist.get_world_size(group), dim_of(self.kinds[0], use)
        if self.weight.shape[dim] % size:
            raise ValueError(f"castor: the weight of a {type(self).__name__} is {tuple(self.weight.shape)}, and dimension {dim} does not divide by {size} ranks")
        self.castor_use, self.castor_group = use, group

        def part(parameter, along):
            own = part_of(parameter.detach(), along, group).clone(memory_format=torch.contiguous_format)
            return torch.nn.Parameter(own, requires_grad=parameter.requires_grad)

        self.weight = part(self.weight, dim)
        if self.native is torch.nn.Linear and use in (COLUMN, GATHERED) and self.bias is not None:
            self.bias = part(self.bias, 0)

    def _begin(self, process_group, options):
        """Ranks begin with the values of the group's first one."""
        use = self.use_of(options)
        if dist.get_world_size(process_group) > 1:
            first = dist.get_process_group_ranks(process_group if process_group is not None else dist.group.WORLD)[0]
            for parameter in self._parameters.values():
                if parameter is not None:
                    dist.broadcast(parameter.detach(), first, group=process_group)
        self._divide(use, process_group)


class _Linear(_Layer, Divided, torch.nn.Linear):
    def __init__(self, in_features, out_features, bias=True, dtype=None, device=None, process_group=None, **options):
        torch.nn.Linear.__init__(self, in_features, out_features, bias, device, dtype)
        self._begin(process_group, options)


class Linear1D_Col(_Linear):
    """nn.Linear divided by outputs: (..., in_features) to (..., out_features / ranks), or whole ones with gather_output=True.

    Args: in_features, out_features: of the whole layer. process_group: None: all ranks. Every rank makes the layer, and gives it the same input."""

    uses, chosen_by = {False: COLUMN, True: GATHERED}, ("gather_output", False)


class VocabParallelLMHead1D(Linear1D_Col):
    """The same, for a model's last layer."""


class Linear1D_Row(_Linear):
    """nn.Linear divided by inputs: (..., in_features / ranks) to (..., out_features), which are whole. parallel_input=False: it gets whole inputs."""

    uses, chosen_by = {True: ROW, False: SPLIT}, ("parallel_input", True)


class _Embedding(_Layer, DividedEmbedding, torch.nn.Embedding):
    native, kinds = torch.nn.Embedding, ("embedding",)

    def __init__(self, num_embeddings, embedding_dim, padding_idx=None, dtype=None, device=None, process_group=None, **options):
        torch.nn.Embedding.__init__(self, num_embeddings, embedding_dim, padding_idx, device=device, dtype=dtype)
        self._begin(process_group, options)


class Embedding1D(_Embedding):
    """nn.Embedding divided by features, which are put together: indices of any shape to (..., embedding_dim)."""

    uses, chosen_by = {True: SPLIT, False: None}, ("gather_output", True)


class VocabParallelEmbedding1D(_Embedding):
    """nn.Embedding divided by entries: indices of any shape to (..., embedding_dim), whole. IndexError: an index that the whole table lacks."""

    uses = {True: GATHERED}
