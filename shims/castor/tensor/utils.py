"""Parameters that are ColoTensors, and dimensions of sharding specifications (Colossal-AI: colossalai.tensor.utils)."""
from .. import parallel
from .colo_tensor import ColoTensor

__all__ = ["convert_dim_partition_dict", "merge_same_dim_mesh_list", "named_params_with_colotensor"]


def named_params_with_colotensor(module, prefix="", recurse=True):
    """Yields (name, tensor) of the ColoTensors that are attributes of `module`, then of its parameters, each tensor once.

    prefix: put before all names. recurse: those of submodules, too; otherwise only direct members."""
    seen = set()
    modules = list(module.named_modules(prefix=prefix)) if recurse else [(prefix, module)]
    for path, owner in modules:
        for name, value in vars(owner).items():
            if isinstance(value, ColoTensor) and id(value) not in seen:
                seen.add(id(value))
                yield f"{path}.{name}" if path else name, value
    for name, parameter in module.named_parameters(prefix=prefix, recurse=recurse):
        if id(parameter) not in seen:
            seen.add(id(parameter))
            yield name, parameter


def convert_dim_partition_dict(dim_size, dim_partition_dict):
    """A new dict with dimensions of a tensor of `dim_size` dimensions counted from 0: {-1: [0]} becomes {2: [0]} for 3. ValueError: no
    such dimension, or one is named twice (merge_same_dim_mesh_list puts these together)."""
    return parallel.convert_partitions(dim_size, dim_partition_dict)


def merge_same_dim_mesh_list(dim_size, dim_partition_dict):
    """A new dict with the axes of one dimension together, in order of appearance: {1: [0], -1: [1]} becomes {1: [0, 1]} for 2
    dimensions."""
    return parallel.merge_partitions(dim_size, dim_partition_dict)
