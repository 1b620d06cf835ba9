"""Stages of a model for pipeline parallelism."""
import torch

from . import parallel

__all__ = ["partition"]


def partition(model, stages, balance="bytes"):
    """Divides a chain of modules into stages.

    Args:
        model: an nn.Sequential, or an nn.ModuleList or list of modules each of which takes what the one before gives.
        stages: how many.
        balance: "bytes": the stage with the most bytes of parameters has as few as possible; "layers": the one with the most modules.

    Returns a list of nn.Sequential, in order; give the one of its stage to each rank. A parameter of several stages stays in each of
    them: castor.initialize adds its gradients. ValueError: fewer modules with parameters than stages. TypeError: the model is no chain; divide it
    yourself then, any module can be a stage."""
    if not isinstance(model, (torch.nn.Sequential, torch.nn.ModuleList, list, tuple)):
        raise TypeError(f"castor: partition() divides an nn.Sequential or an nn.ModuleList, not a {type(model).__name__}: divide it yourself; any "
                        "module can be a stage")
    layers = list(model)
    if balance not in ("bytes", "layers"):
        raise ValueError(f"castor: balance is {balance!r}: expected 'bytes' or 'layers'")
    # A stage needs a parameter: layers without any stay with the one before, the first ones with the one behind.
    starts = [i for i, layer in enumerate(layers) if any(True for _ in layer.parameters())]
    if not 1 <= stages <= len(starts):
        raise ValueError(f"castor: {stages} pipeline stages of a chain of {len(starts)} modules with parameters: each stage needs one at least")
    bounds = [0, *starts[1:], len(layers)]
    blocks = [layers[begin:end] for begin, end in zip(bounds, bounds[1:])]
    costs = [len(block) if balance == "layers" else sum(p.numel() * p.element_size() for layer in block for p in layer.parameters()) for block in blocks]
    ends = parallel.divide(costs, stages)
    made = [torch.nn.Sequential(*(layer for block in blocks[begin:end] for layer in block)) for begin, end in zip([0, *ends], ends)]
    users = {}  # a parameter's id: the stages that use it
    for stage, module in enumerate(made):
        for p in module.parameters():
            users.setdefault(id(p), []).append(stage)
    shared = [key for key, of in users.items() if len(of) > 1]
    for module in made:
        named = {id(p): p for p in module.parameters()}
        module.castor_tied = [(users[key], named.get(key)) for key in shared]  # (parts, the parameter or None), alike on all ranks
    return made
