"""How often a script of this folder has called the library's steps."""
import functools

made = 0


def _counted(function):
    @functools.wraps(function)
    def call(*args):
        global made
        made += 1
        return function(*args)

    return call


def count(core, *names):
    """From here on, calls of these functions of `core` are in `made`."""
    for name in names:
        setattr(core, name, _counted(getattr(core, name)))
