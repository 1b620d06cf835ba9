"""Random numbers: those of the CPU's generators."""
import torch

_low = {}  # by the identity of a device's generator: (the generator, its seed, a CPU generator)


def low_generator(generator):
    """The CPU generator that draws for a device's; None: the default one, which also draws for the device's default generator."""
    if generator.device.type != "cuda":
        return generator
    if any(generator is default for default in torch.cuda.default_generators):
        return None
    kept = _low.get(id(generator))
    if kept is None or kept[1] != generator.initial_seed():
        kept = _low[id(generator)] = generator, generator.initial_seed(), torch.Generator().manual_seed(generator.initial_seed())
    return kept[2]
