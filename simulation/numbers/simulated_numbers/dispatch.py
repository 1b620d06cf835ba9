"""Replaces the dispatcher's kernels for CUDA by stand-ins that give numbers (see __init__.py)."""
import contextlib
import re
import sys
import threading
import warnings

import torch

from .random import low_generator
from .tensors import announce, copy_of, leaves, mapped, over

# What gives memory or says something about a tensor. What gives views is known by its schema.
NOTHING_COMPUTED = {
    "resize_", "set_", "record_stream", "is_pinned", "_pin_memory", "is_set_to", "_has_same_storage_numel", "_local_scalar_dense",
    "_efficientzerotensor", "unfold", "_cslt_compress", "_validate_sparse_coo_tensor_args",
}
# Sizes of results depend on numbers, which the wheel's kernel would read from its own counts.
BY_NUMBERS = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)

# What a kernel of the wheel fails with only here: libraries of NVIDIA's that do not start, products that are not simulated, and
# numbers that it takes as tensors of the device, which no stand-in can be given.
ONLY_HERE = re.compile(r"(?i:cu(solver|fft|dnn|sparse|rand))|CUBLAS_STATUS_NOT_SUPPORTED|pybind_utils\.cpp")


class NoNumbers(NotImplementedError):
    """An operator whose numbers are not simulated."""


class Lowered:
    """The arguments of a call as the CPU's kernel gets them. What the operator writes is a copy, so that the wheel's own kernel
    starts from what was there before."""

    def __init__(self, func, args, kwargs):
        self._low = {}
        self.changed = list(leaves(_written(func, args, kwargs)))
        for tensor in self.changed:
            self._low[id(tensor)] = copy_of(over(tensor) if tensor.is_cuda else tensor)
        self.args = mapped(self._one, args)
        self.kwargs = {name: mapped(self._one, value) for name, value in kwargs.items() if name != "pin_memory"}

    def _one(self, value):
        if isinstance(value, torch.Tensor):
            if value.is_cuda and id(value) not in self._low:
                self._low[id(value)] = over(value)
            return self._low.get(id(value), value)
        if isinstance(value, torch.device) and value.type == "cuda":
            return torch.device("cpu")
        return low_generator(value) if isinstance(value, torch.Generator) else value

    def write_back(self):
        for tensor in self.changed:
            put(tensor, self._low[id(tensor)])

    def stands_for(self, low):
        """The argument that was written as this CPU tensor; None: it is a new one."""
        return next((tensor for tensor in self.changed if self._low[id(tensor)] is low), None)


def _written(func, args, kwargs):
    schema = func._schema.arguments
    positional = [argument for argument in schema if not argument.kwarg_only]
    for number, argument in enumerate(positional[: len(args)]):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield args[number]
    for argument in schema:
        if argument.name in kwargs and argument.alias_info is not None and argument.alias_info.is_write:
            yield kwargs[argument.name]


def put(tensor, low):
    """Gives a tensor the numbers of a CPU tensor, and its sizes, which differ where `out=` was resized."""
    if tensor.size() != low.size():
        tensor.resize_(low.size())
    if tensor.numel():
        (over(tensor) if tensor.is_cuda else tensor).copy_(low)


def placed(low, device, planned):
    """A new tensor on the device with the numbers of a CPU tensor, and the strides that are planned."""
    alike = isinstance(planned, torch.Tensor) and planned.size() == low.size()
    made = torch.empty_strided(low.size(), (planned if alike else low).stride(), dtype=low.dtype, device=device)
    put(made, low)
    return made


_modes = threading.local()


def _plan(func, args, kwargs):
    """The results of a kernel that is not called, as PyTorch's compiler expects them of the device: the CPU's may have other strides. None: it does not know."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # takes a while to import

    def without_memory(value):
        if isinstance(value, torch.Tensor):
            return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)
        return value

    _modes.fake = mode = getattr(_modes, "fake", None) or FakeTensorMode()
    try:
        with mode:
            return func(*mapped(without_memory, args), **{name: mapped(without_memory, value) for name, value in kwargs.items()})
    except (NotImplementedError, RuntimeError):
        return None


def device_of(args, kwargs):
    """The simulated device that a call is about; None: none."""
    found = next((tensor.device for tensor in leaves((*args, *kwargs.values())) if tensor.is_cuda), kwargs.get("device"))
    return None if found is None or torch.device(found).type != "cuda" else torch.device(found)


def _wait(device):
    torch.cuda.current_stream(device).synchronize()


def _returned(result, own, planned, lowered, device):
    """The results of the CPU's kernel as the device's: what was written, the wheel's own result with these numbers, or a new one."""
    if isinstance(result, (list, tuple)):
        owns, plans = (many if isinstance(many, (list, tuple)) else [None] * len(result) for many in (own, planned))
        made = [_returned(*each, lowered, device) for each in zip(result, owns, plans)]
        return made if isinstance(result, list) else tuple(made)
    if not isinstance(result, torch.Tensor):
        return result
    original = lowered.stands_for(result)
    if original is not None or own is None:
        return original if original is not None else placed(result, device, planned)
    put(own, result)
    return own


def _own_results(kernel, keyset, args, kwargs, draws):
    """The wheel's kernel: it allocates, launches and refuses. None where it fails only here. What it is composed of may draw once more."""
    given = next((low_generator(value) for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)), None)
    generator = given or torch.default_generator
    state = generator.get_state() if draws else None
    try:
        return kernel.call_boxed(keyset, *args, **kwargs)
    except RuntimeError as error:
        if not ONLY_HERE.search(str(error)):
            raise
        return None
    finally:
        if draws:
            generator.set_state(state)


def _check_devices(func, tensors):
    """As the wheel's kernel does, where it is not called."""
    found = sorted({str(one.device) for one in tensors if one.is_cuda or one.dim()})
    if len(found) > 1:
        raise RuntimeError(f"Expected all tensors to be on the same device, but found at least two devices, {found[1]} and {found[0]}! ({func})")


@contextlib.contextmanager
def _unseen():
    """A device's kernel draws random numbers where no dispatcher sees it: nor does Castor see that the CPU's does."""
    here = getattr(sys.modules.get("castor.agent.nproc.randomness"), "here", None)
    if here is None:
        yield
        return
    here.plain += 1
    try:
        yield
    finally:
        here.plain -= 1


def _stand_in(func, own):
    kernel = None if own.direct else torch.library.get_kernel(func, "CUDA")
    compute = own.compute or func
    launches = own.launches and not any(tag in func.tags for tag in BY_NUMBERS)
    draws = torch.Tag.nondeterministic_seeded in func.tags

    def called(keyset, *args, **kwargs):
        if own.direct:
            return own.direct(*args, **kwargs)
        args = _numbers_as_tensors(func, args)
        device, tensors = device_of(args, kwargs), list(leaves((*args, *kwargs.values())))
        if device is None or any(one.layout != torch.strided for one in tensors) or own.plain and own.plain(*args, **kwargs):
            return kernel.call_boxed(keyset, *args, **kwargs)
        if torch.cuda.is_current_stream_capturing():
            raise NoNumbers(f"{func}: numbers are not simulated in a graph of CUDA; leave out --numbers")
        if not own.launches:
            _check_devices(func, tensors)
        announce(tensors, device)
        _wait(device)
        lowered = Lowered(func, args, kwargs)
        try:
            with _unseen():
                result = compute(*lowered.args, **lowered.kwargs)
        except NotImplementedError as error:
            raise NoNumbers(f"{func}: PyTorch has no kernel for the CPU, so its numbers are not simulated") from error
        if any(one.layout != torch.strided for one in leaves((result,))):
            raise NoNumbers(f"{func}: numbers of sparse tensors are not simulated")
        mine, planned = None, None if own.launches else _plan(func, args, kwargs)
        if launches:
            mine = _own_results(kernel, keyset, args, kwargs, draws)
            _wait(device)
        lowered.write_back()
        return _returned(result, mine, planned, lowered, device)

    return called


def _numbers_as_tensors(func, args):
    """A number beside a tensor comes from the dispatcher as a number of Python, where the operator takes a tensor."""
    schema = func._schema.arguments
    wanted = [number for number, value in enumerate(args)
              if isinstance(value, (bool, int, float, complex)) and isinstance(schema[number].type, torch.TensorType)]
    if not wanted:
        return args
    beside = next((tensor.dtype for tensor in leaves(args)), None)
    made = list(args)
    for number in wanted:
        one = torch.tensor(args[number])
        same_kind = beside is not None and (one.is_floating_point(), one.is_complex()) == (beside.is_floating_point, beside.is_complex)
        made[number] = one.to(beside) if same_kind and one.dtype != torch.bool else one
    return tuple(made)


def _overload(name):
    """The operator of a name as the dispatcher has it, `aten::add.Tensor`; None: Python does not know it."""
    name, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, name, None), overload or "default", None)


def _computes(func, name):
    views = any(result.alias_info is not None and not result.alias_info.is_write for result in func._schema.returns)
    return not views and name not in NOTHING_COMPUTED and not name.startswith(("empty", "new_empty", "_cufft", "_nested", "_cuda_", "_use_"))


def _without_numbers(func, own):
    """For kernels that fail here, where nothing is computed: memory for their results."""

    def allocated(planned):
        return torch.empty_strided(planned.size(), planned.stride(), dtype=planned.dtype, device=planned.device) if isinstance(planned, torch.Tensor) else planned

    def called(keyset, *args, **kwargs):
        if own.direct or not any(isinstance(result.type, torch.TensorType) for result in func._schema.returns):
            return (own.direct or own.compute)(*args, **kwargs)
        planned = _plan(func, args, kwargs)
        if planned is None:
            raise NoNumbers(f"{func}: PyTorch does not know the shapes of its results, and its kernel does not run here")
        return mapped(allocated, planned)

    return called


def replace_failing(library, known):
    """Gives the operators of cuDNN memory for their results, and no numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of kernels that are replaced
        for name in (name for name in known if "cudnn" in name or name.startswith("convolution")):
            for overload in (overload for overload in getattr(torch.ops.aten, name).overloads() if overload != "out"):
                func = getattr(getattr(torch.ops.aten, name), overload)
                library.impl(func, _without_numbers(func, known[name]), "CUDA", with_keyset=True)


def replace(library, known, ordinary):
    """Gives each operator that has a kernel for CUDA its stand-in. `known`: operators.StandIn by name; `ordinary`: for the others."""
    names = {name for name in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA") if name.startswith("aten::")}
    for name in (name for name, own in known.items() if own.everywhere):
        overloads = (f"aten::{name}.{overload}".removesuffix(".default") for overload in getattr(torch.ops.aten, name).overloads())
        names.update(full for full in overloads if torch._C._dispatch_has_kernel(full))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of kernels that are replaced
        for full in sorted(names):
            func, name = _overload(full), full.removeprefix("aten::").partition(".")[0]
            own = known.get(name) or (ordinary(name) if func is not None and _computes(func, name) else None)
            if func is not None and own is not None:
                library.impl(func, _stand_in(func, own), "CUDA", with_keyset=True)
