"""The casts under CASTOR_PRECISION: of a model's tensors, of its inputs and of its outputs.

Float inputs of a model become 16 bits, and its 16-bit outputs become float. Inputs of loss functions become float as well, also
inside models: losses are computed in float. A module with 16-bit parameters of its own casts its float inputs, too: models make
floats inside (positions, masks, buffers). Hooks of these modules do it. A copy of the model has them, too, but its parameters are
float: the hooks go by the type of the parameters."""
import contextlib
import dataclasses
import gc

import torch
from torch.utils import _pytree

from .. import core, patching, replaced
from ..process import compiler

HALF = (torch.float16, torch.bfloat16)

_before_forward = None
_computes = None  # the 16-bit type
_wrapped = None  # the module that a wrapper is being built around


@contextlib.contextmanager
def wrapping(module):
    """Parameters that are adopted meanwhile are those of `module`."""
    global _wrapped
    _wrapped = module
    try:
        yield
    finally:
        _wrapped = None


def prepare(parameters):
    """Hooks the models that have these parameters. Returns the ids of the parameters of modules that compute in 16 bits, all
    tensors of these modules, and their buffers as (module, name)."""
    of_modules, tensors, buffers = set(), {}, []
    for root in [_wrapped] if _wrapped is not None else _roots(parameters):
        for module in root.modules():
            if _stays(module):
                continue
            of_modules.update(id(p) for p in module._parameters.values() if p is not None)
            own = (*module._parameters.values(), *module._buffers.values())
            tensors.update((id(t), t) for t in own if t is not None)
            buffers += [(module, name) for name in module._buffers]
            if any(p is not None for p in _own(module)):
                _hook(module, narrow=_narrow_inputs)
        _hook(root, narrow=_enter, widen=_leave)
    return of_modules, list(tensors.values()), buffers


def _stays(module):
    """Batch norms stay float, with their statistics: PyTorch computes them so on 16-bit inputs."""
    return isinstance(module, torch.nn.modules.batchnorm._NormBase)


def _roots(parameters):
    """The outermost modules that hold some of the parameters; a script's loop may have made them in any way."""
    wanted = {id(p) for p in parameters}
    found = [m for m in gc.get_objects() if issubclass(type(m), torch.nn.Module)]
    holders = [m for m in found if any(id(p) in wanted for child in _modules(m) for p in child._parameters.values())]
    inside = {id(child) for m in holders for child in _modules(m) if child is not m}
    return [m for m in holders if id(m) not in inside]


def _modules(module):
    """`module` and those inside it; one whose construction has not come far has none."""
    return module.modules() if "_modules" in module.__dict__ and "_parameters" in module.__dict__ else ()


def _hook(module, narrow, widen=None):
    done = module.__dict__.setdefault("_castor_cast", [])
    if narrow.__name__ in done:
        return
    done.append(narrow.__name__)
    module.register_forward_pre_hook(narrow, with_kwargs=True)
    if widen is not None:
        module.register_forward_hook(widen)


def _cast(thing, of, to):
    if isinstance(thing, torch.Tensor):
        return thing.to(to) if thing.dtype is of else thing
    if type(thing) in (tuple, list):
        return type(thing)([_cast(each, of, to) for each in thing])
    if type(thing) is dict:
        return {key: _cast(each, of, to) for key, each in thing.items()}
    return thing


def _has_float(thing):
    if isinstance(thing, torch.Tensor):
        return thing.dtype is torch.float32
    if type(thing) in (tuple, list):
        return any(_has_float(each) for each in thing)
    return type(thing) is dict and any(_has_float(each) for each in thing.values())


def _type_of(module):
    """The 16-bit type of the module's own parameters; None if they have another type."""
    for p in _own(module):
        if p is not None and p.dtype in HALF:
            return p.dtype
    return None


def _own(module):
    """The parameters that the module itself computes with, including those of its parametrizations (weight norms)."""
    parametrized = module._modules.get("parametrizations")
    own = module._parameters.values()
    return own if parametrized is None else (*own, *parametrized.parameters())


def _narrow_inputs(module, args, kwargs):
    to = _type_of(module)
    if to is None:
        return None
    _refuse_autocast()
    _before_forward(module)
    if not _has_float(args) and not _has_float(kwargs):
        return None
    return _cast(args, torch.float32, to), _cast(kwargs, torch.float32, to)


def _refuse_autocast():
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise core.Error(f"castor: the script uses autocast, and CASTOR_PRECISION={core.options.precision} casts as "
                         "well: leave CASTOR_PRECISION at fp32 for this script, or take the autocast out")


def _computes_in(model):
    """The 16-bit type of a model, None when it is a copy that is float."""
    for p in model.parameters():
        if p.dtype in HALF:
            return p.dtype
    return None


def _enter(model, args, kwargs):
    to = _computes_in(model)
    if to is None:
        return None
    _refuse_autocast()
    _before_forward(None)
    return _pytree.tree_map(lambda t: _cast(t, torch.float32, to), (args, kwargs))


def _leave(model, args, output):
    to = _computes_in(model)
    return None if to is None else _widened(output, to)


def _widened(output, of):
    """Widens an output, also inside dataclasses that PyTorch does not know."""
    def widen(thing):
        if not dataclasses.is_dataclass(thing) or isinstance(thing, type):
            return _cast(thing, of, torch.float32)
        for field in dataclasses.fields(thing):
            before = getattr(thing, field.name, None)
            after = _widened(before, of)
            if after is not before:
                object.__setattr__(thing, field.name, after)
        return thing

    return _pytree.tree_map(widen, output)


def _in_float(stock):
    @compiler.wraps(stock)
    def loss(*args, **kwargs):
        return stock(*_cast(args, _computes, torch.float32), **_cast(kwargs, _computes, torch.float32))

    return loss


def install(dtype, before_forward):
    """`dtype`: the 16-bit type. `before_forward` is called before a model computes in it, with the module that does, or with None
    for the whole model."""
    global _before_forward, _computes
    is_first, _before_forward, _computes = _computes is None, before_forward, dtype
    for name in replaced.LOSSES if is_first else ():
        patching.replace(f"torch.nn.functional.{name}", _in_float)
