"""Optimizers of castor.nn."""
from . import case, models
from .optimizers import OF_CASTOR


@case(optimizers=OF_CASTOR)
def of_castor(log, make):
    models.mlp(log, make)
