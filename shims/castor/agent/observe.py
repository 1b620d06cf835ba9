"""Plugin `none`: steps and backward passes are counted, nothing is changed."""
from .optim import steps
from .process import events


def install():
    events.install()
    steps.install_counting()
