"""What a plugin with an engine replaces in PyTorch, before the script's first line runs."""
from . import clipping, events, optimizers, reducer


def install():
    events.install(begun=lambda outputs: None, ended=lambda outputs, synchronized: None)
    reducer.install()
    optimizers.install()
    clipping.install()
