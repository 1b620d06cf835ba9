"""A plugin object of the explicit API starts the engine, in a process that CASTOR_PLUGIN=none has only observed so far.

What was made before that is taken up: optimizer classes whose step PyTorch has wrapped already, and blocks of the system's allocator,
whose parameters move when they are registered."""
import gc
import os

import torch

from . import core, patching
from .common import store
from .nodes import process_groups


class Conflict(RuntimeError):
    """The plugin object asks for something else than what runs in this process."""


def start(plugin, asked, **options):
    """Starts the engine as `plugin` (CASTOR_PLUGIN's word), with options by their names in the environment, if it does not run yet.

    Args:
        asked: who asks, in the script's words ("GeminiPlugin(...)"), for errors.
        options: values as text; one that equals what is set already is no change.

    Conflict: another plugin is chosen in the environment, or an option cannot change any more."""
    changed = {name: value for name, value in options.items() if not _is_set(name, value)}
    if core.options.plugin != plugin or changed:
        _start(plugin, asked, changed)
    from . import plugin as engine

    if engine.trainer is not None and engine.trainer.world == 1:
        engine.trainer.boost()


def _start(plugin, asked, changed):
    if core.plugin_engine() and core.options.plugin != plugin and not _started:
        raise Conflict(f"castor: the environment says CASTOR_PLUGIN={core.options.plugin}, and the script makes a {asked}, which is "
                       f"CASTOR_PLUGIN={plugin}: leave the plugin out of `castor run`, or make a plugin object of the same kind")
    if changed and store.groups():
        raise Conflict(f"castor: {asked} sets {', '.join(f'{name}={value}' for name, value in changed.items())}, and another plugin object's model "
                       "is in the store already, with other values: make the plugin objects alike, or train in two runs")
    for name, value in {"CASTOR_PLUGIN": plugin, **changed}.items():
        core.option_set(name.encode(), value.encode())
    running = core.options.plugin != "none"
    core.read_options()
    if running:
        core.engine_start()  # tells the trace of the other plugin
        return
    core.torch_check(str(torch.__version__).encode())
    hooked = _unhook()
    patching.undo_all()  # what observes
    process_groups.install()
    core.engine_start()
    from . import plugin as engine

    engine.install()
    _hook(hooked)
    _started.append(plugin)


def use_precision(precision, **scale):
    """CASTOR_PRECISION for the models that are boosted from here on. None: the environment's. `scale`: fields of castor_loss_scale.
    Conflict: other models of this process compute in another one."""
    precision = precision or os.environ.get("CASTOR_PRECISION", "fp32")
    from . import plugin as engine
    from .precision import masters

    wanted = masters.DTYPES[precision]
    if wanted is masters.dtype and not scale:
        return
    if wanted is not masters.dtype and "CASTOR_PRECISION" in os.environ:
        raise Conflict(f"castor: the environment says CASTOR_PRECISION={os.environ['CASTOR_PRECISION']}, and a plugin object asks for {precision}: "
                       "leave the option out, or give the plugin object the same precision")
    if masters.has_any():
        gc.collect()
    if masters.has_any():
        if wanted is masters.dtype:
            return  # the loss scale goes on
        raise Conflict(f"castor: another model of this process trains in {core.options.precision}, and a plugin object asks for {precision}: all "
                       "models of a process that live at a time have one precision; say it alike in all plugin objects")
    core.option_set(b"CASTOR_PRECISION", precision.encode())
    core.read_options()
    engine.install_precision(**scale)


_started = []  # the plugins that plugin objects started


def _is_set(name, value):
    now = getattr(core.options, name.removeprefix("CASTOR_").lower())
    return str(now) == value or isinstance(now, (int, float)) and value.replace(".", "", 1).isdigit() and float(value) == now


def tell(text):
    """One line, once in a job: the log says no line twice."""
    core.log(1, text.encode())


def _classes(cls=torch.optim.Optimizer):
    for child in cls.__subclasses__():
        yield child
        yield from _classes(child)


def _unhook():
    """Takes the wrappers off the `step` of the optimizer classes that have had an instance, and returns these classes."""
    hooked = [cls for cls in dict.fromkeys(_classes()) if getattr(vars(cls).get("step"), "hooked", False)]
    for cls in hooked:
        step = cls.step
        while getattr(step, "hooked", False):  # functools.wraps copies the mark down to PyTorch's own wrapper
            step = step.__wrapped__
        cls.step = step
    return hooked


def _hook(classes):
    for cls in classes:
        cls.step = torch.optim.Optimizer.profile_hook_step(cls.step)
        cls.step.hooked = True


def train_as_one(optimizer):
    """The engine trains this optimizer's parameters in a job of one rank, with or without a process group; does nothing in others. Conflict:
    they were taken in another precision before."""
    from . import plugin as engine
    from .precision import masters

    alone = not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1
    if engine.trainer is None or engine.trainer.world > 1 or not alone:
        return
    if masters.dtype is not None and any(store.entry_of(p) is not None and masters.of(p) is None for p in store.parameters_of(optimizer)):
        raise Conflict(f"castor: this optimizer's parameters were placed as floats when it was built, and the plugin object asks for {core.options.precision}: "
                       "make the plugin object before the optimizer")
    engine.trainer.boost(optimizer)


def take_up(optimizer):
    """An optimizer that was built before the engine ran: a scheduler may have kept the step of that time."""
    own = vars(optimizer).get("step")
    if own is not None and getattr(own, "_wrapped_by_lr_sched", False):
        del optimizer.step
        step = type(optimizer).step

        def counted(*args, **kwargs):
            optimizer._opt_called = True
            return step(optimizer, *args, **kwargs)

        counted._wrapped_by_lr_sched = True
        optimizer.step = counted
