"""Parameters that are ColoTensors, and dimensions of sharding specifications (Colossal-AI: colossalai.tensor.utils)."""
from .colo_tensor import ColoTensor

__all__ = ["named_params_with_colotensor"]


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
