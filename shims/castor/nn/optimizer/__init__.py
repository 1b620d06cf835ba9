"""Optimizers (Colossal-AI: colossalai.nn.optimizer). Each steps every parameter on its own, so that under a plugin its owner steps
it, with the bits of a process alone (docs/nn.md)."""
from .adafactor import Adafactor
from .adam import CPUAdam, FusedAdam, HybridAdam
from .came import CAME
from .lamb import FusedLAMB, Lamb
from .lars import Lars
from .sgd import FusedSGD

__all__ = [
    "Adafactor", "CAME", "CPUAdam", "DistributedAdaFactor", "DistributedCAME", "DistributedLamb", "FusedAdam", "FusedLAMB",
    "FusedSGD", "HybridAdam", "Lamb", "Lars", "cast_to_distributed",
]

# Castor divides the work of every optimizer: there is no second class to convert to.
DistributedAdaFactor, DistributedCAME, DistributedLamb = Adafactor, CAME, Lamb


def cast_to_distributed(optim):
    """Returns `optim`: it is distributed already."""
    return optim
