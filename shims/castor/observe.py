"""Plugin `none`: steps and backward passes are counted, nothing is changed."""
from . import events, optimizers


def install():
    events.install()
    optimizers.install_counting()
