"""Castor's kernels (kernels/optimizer.h) replace torch.optim's own loops where they give the same bits.

`Adam.step` and its like leave the arithmetic to one function for each implementation: a loop over tensors, foreach, fused.
Only these functions are replaced: parameter groups, states, their layout and every check stay PyTorch's. PyTorch's function runs
if a kernel cannot do the step, or (CASTOR_OPTIMIZER=auto) gave other bits when it was tried in this process. Parameters on CUDA devices
have kernels of their own (cuda_kernels.py).

A float parameter may then also have a 16-bit gradient: the step is that with the gradient widened."""
import contextlib
import ctypes
import functools
import inspect
import math
import platform
import threading
from collections import defaultdict

import torch

from .. import core, patching
from ..common import tensors
from . import cuda_kernels

NO_DECAY, COUPLED, DECOUPLED = range(3)  # castor.h: CASTOR_DECAY_
# Less than a vector, a tail, several vectors and a tail, vectors alone: of these PyTorch may have a loop of its own, with other bits.
TRIED_SIZES = (1, 37, 1029, 1032)
TRIED_STEPS = 2
# Parameters and gradients are tried over so many powers of two: how a product is rounded shows only where what it is added to is not much larger.
TRIED_POWERS = 24
# Steps done before, where a device computes the powers. How a number of a step is rounded shows in some steps only.
TRIED_COUNTS = (0.0, 9.0, 4999.0, *map(float, range(1, 40, 2)))

NARROW = (torch.bfloat16, torch.float16)
# States that a step has only with an option of this name.
KIND_OF_STATE = {"max_exp_avg_sqs": "amsgrad", "momentum_buffer_list": "momentum"}

_chosen = "auto"
_equal = {}  # (PyTorch's function, options): whether the bits were the same
_ROUNDINGS = {"multi_tensor": core.ROUNDS_AS_CUDA, "single_tensor": core.ROUNDS_AS_CUDA_SINGLE, "fused": core.ROUNDS_AS_CUDA_FUSED}
_roundings = {}  # the same on the host: the rounding that gave them, or None
_told = set()  # PyTorch's functions that stay, and of which the log says so


class _Asked(threading.local):
    """The arguments of `publishing` and `on_host`, for the steps of this thread."""

    factor, working, gradients = 1.0, {}, {}
    run, rounding = None, None  # run(name of the kernel, its numbers, ranges[, castor_late, its numbers]) in place of the kernel


_asked = _Asked()


@contextlib.contextmanager
def publishing(working, factor=1.0):
    """Inside, steps of this thread first multiply gradients by `factor`, in float (the gradients themselves stay unchanged).
    `working`: {address of a float parameter: 16-bit tensor with its elements in the same order}; the step writes the parameter's
    new value there, rounded to nearest even. A kernel does all in one pass; the bits are the same without one.
    Of Adam, AdamW and SGD only."""
    _replace_all()
    before = _asked.factor, _asked.working
    _asked.factor, _asked.working = factor, working
    try:
        yield
    finally:
        _asked.factor, _asked.working = before


class NotOnHost(Exception):
    """The processors cannot do this step of a device's parameters. Nothing was done."""


@contextlib.contextmanager
def on_host(run, working, gradients):
    """Inside, steps of this thread of parameters on a CUDA device are those of the kernels for the CPU, with the bits of the device:
    run(name, numbers, ranges) has them done. NotOnHost comes from a step that they cannot do so. `working`: as of `publishing`; `gradients`:
    {address of a parameter: the gradient that is taken in place of its own}, which may have 16 bits."""
    _replace_all()
    _asked.run, _asked.working, _asked.gradients = run, working, gradients
    try:
        yield
    finally:
        _asked.run, _asked.working, _asked.gradients = None, {}, {}


def _gradient_of(p, given):
    return _asked.gradients.get(p.data_ptr(), given) if _asked.gradients else given


def _working_of(p):
    return _asked.working.get(p.data_ptr()) if _asked.working else None


def is_plain(t):
    return type(t) in (torch.Tensor, torch.nn.Parameter) and t.layout is torch.strided and not t.is_inference()


def _fits(*lists):
    """Whether a kernel steps these: plain tensors on one device, each parameter's gradient and states with its order of elements.
    They are float. A gradient may have 16 bits; under `hybrid` so may a parameter, and its gradient and states the same type."""
    device = lists[0][0].device
    for each in zip(*lists):
        first = each[0]
        strides, allowed = first.stride(), (first.dtype,) if _chosen == "hybrid" and first.dtype in NARROW else ()
        if not (first.is_contiguous() or tensors.is_dense(first)):
            return False
        for t in each:
            if not is_plain(t) or t.device != device:
                return False
            if t.dtype is not torch.float32 and t.dtype not in allowed and not (t is each[1] and t.dtype in NARROW):
                return False
            if t.shape != first.shape or t.stride() != strides:
                return False
    return True


def _are_apart(parameters):
    """Whether no two of them share memory. PyTorch's functions step one parameter after another, so they can step the same memory
    twice; a kernel's threads step all ranges at once."""
    ranges = sorted((start := p.data_ptr(), start + p.nbytes) for p in parameters)
    return all(end <= start for (_, end), (start, _) in zip(ranges, ranges[1:]))


def _ranges(places, parameters, gradients, states):
    """One range for each index in `places`: the whole tensor. `states`: a list for each kind."""
    ranges = (core.StepRange * len(places))()
    for r, i in zip(ranges, places):
        p, working = parameters[i], _working_of(parameters[i])
        r.param, r.grad, r.count = p.data_ptr(), _gradient_of(p, gradients[i]).data_ptr(), p.numel()
        if working is not None:
            r.master, r.param = r.param, working.data_ptr()
        r.numel = r.count
        for kind, of_kind in enumerate(states):
            r.states[kind] = of_kind[i].data_ptr()
    return ranges


def _alike(parameters, gradients, more):
    """The indices that one call may step: {(type of the published value, type of the gradient, value in `more`): indices}."""
    found = defaultdict(list)
    for place, (p, g) in enumerate(zip(parameters, gradients)):
        working = _working_of(p)
        found[p.dtype if working is None else working.dtype, _gradient_of(p, g).dtype, more[place]].append(place)
    return found.items()


def _widen_states(states):
    """A 16-bit parameter's states are float from its first step on, and again after load_state_dict, which rounds them."""
    for of_kind in states:
        for t in of_kind:
            if t is not None and t.dtype is not torch.float32:
                t.data = t.float()


def _changed(fused, *lists):
    """Tells autograd that these were written, which PyTorch's fused functions do not."""
    if not fused:
        torch.autograd.graph.increment_version([t for of_kind in lists for t in of_kind])


@functools.cache
def _rounding():
    return core.ROUNDS_TWICE if torch.backends.cpu.get_cpu_capability() == "DEFAULT" and platform.machine() == "x86_64" else core.ROUNDS_ONCE


def _step(fused, param_dtype, grad_dtype, decay_kind, decay, maximize, variation):
    rounding = _rounding() if _asked.rounding is None else _asked.rounding
    dtypes = tensors.DTYPES[param_dtype], tensors.DTYPES[grad_dtype]
    return core.Step(*dtypes, decay_kind, fused, rounding, maximize, variation, 0, _asked.factor, 1.0, decay)


def _run(name, numbers, ranges):
    if _asked.run:
        _asked.run(name, numbers, ranges)
    else:
        getattr(core, f"optimizer_{name}")(ctypes.byref(numbers), ranges, len(ranges), torch.get_num_threads())


def _adam(form, params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, *, amsgrad, beta1, beta2, lr,
          weight_decay, eps, maximize, decoupled_weight_decay):
    fused = form == "fused"
    kind = NO_DECAY if weight_decay == 0 else DECOUPLED if decoupled_weight_decay else COUPLED
    decay = 1 - lr * weight_decay if kind == DECOUPLED else weight_decay
    root = math.sqrt if fused else lambda x: x**0.5  # as PyTorch's functions do
    states = (exp_avgs, exp_avg_sqs, max_exp_avg_sqs) if amsgrad else (exp_avgs, exp_avg_sqs)
    _widen_states(states)
    torch._foreach_add_(state_steps, 1)
    if state_steps[0].is_cuda:
        _adam_counted(params, grads, states, state_steps, amsgrad, beta1, beta2, lr, weight_decay, eps, maximize, kind)
        return
    for (param_dtype, grad_dtype, t), here in _alike(params, grads, [t.item() for t in state_steps]):
        step = _step(fused, param_dtype, grad_dtype, kind, decay, maximize, amsgrad)
        divisor = root(1 - beta2**t)
        divisor = 1.0 / divisor if step.rounding == core.ROUNDS_AS_CUDA_SINGLE else divisor
        numbers = core.Adam(step, 1 - beta1, beta2, 1 - beta2, divisor, eps, -(lr / (1 - beta1**t)))
        _run("adam", numbers, _ranges(here, params, grads, states))
    _changed(fused, params, *states)


def _adam_counted(params, grads, states, state_steps, amsgrad, beta1, beta2, lr, weight_decay, eps, maximize, kind):
    """A fused step of a device's parameters, on the host. How many steps there were the device knows, and it makes the powers; nobody waits."""
    as_cuda = _asked.rounding == core.ROUNDS_AS_CUDA_FUSED
    decay = 1 - lr * weight_decay if kind == DECOUPLED else weight_decay
    if as_cuda and kind == DECOUPLED:
        decay = ctypes.c_float(lr).value * ctypes.c_float(weight_decay).value

    def late(here, order):
        counts = torch.stack([state_steps[here[i]] for i in order]).reshape(len(order))
        if not as_cuda:
            return torch.stack([counts, counts], 1).double()
        unbiased = [1 - torch.pow(torch.full_like(counts, beta), counts) for beta in (beta1, beta2)]
        return torch.stack([unbiased[1].sqrt(), -(torch.full_like(counts, lr) / unbiased[0])], 1).double()

    for (param_dtype, grad_dtype, _), here in _alike(params, grads, [None] * len(params)):
        step = _step(not as_cuda, param_dtype, grad_dtype, kind, decay, maximize, amsgrad)
        numbers = core.Adam(step, beta1 if as_cuda else 1 - beta1, beta2, 1 - beta2, 1.0, eps, 0.0)
        ranges = _ranges(here, params, grads, states)
        if _asked.run:
            _asked.run("adam", numbers, ranges, core.Late(0, lr, beta1, beta2, not as_cuda, 0), functools.partial(late, here))
            continue
        for one, (root, size) in zip(ranges, late(here, range(len(here))).tolist()):
            numbers.root_divisor, numbers.negative_step = (root, size) if as_cuda else (math.sqrt(1 - beta2**root), -(lr / (1 - beta1**root)))
            core.optimizer_adam(ctypes.byref(numbers), (core.StepRange * 1)(one), 1, 1)


def _adam_can(form, params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, *, grad_scale, found_inf, amsgrad, has_complex,
              beta1, beta2, lr, weight_decay, eps, capturable, differentiable, **more):
    numbers = all(type(x) in (float, int) for x in (beta1, beta2, lr, weight_decay, eps))
    plain = numbers and grad_scale is None and found_inf is None and not (has_complex or capturable or differentiable)
    states = (max_exp_avg_sqs,) if amsgrad else ()
    counted_on = params[0].device if form == "fused" else torch.device("cpu")
    return plain and all(t.dtype is torch.float32 and t.device == counted_on for t in state_steps) and _fits(
        params, grads, exp_avgs, exp_avg_sqs, *states)


def _sgd(form, params, grads, momentum_buffer_list, *, weight_decay, momentum, lr, dampening, nesterov, maximize):
    fused = form == "fused"
    _widen_states([momentum_buffer_list] if momentum else [])
    first_of = [momentum != 0 and momentum_buffer_list[i] is None for i in range(len(params))]
    for (param_dtype, grad_dtype, first), here in _alike(params, grads, first_of):
        if first:
            for i in here:
                momentum_buffer_list[i] = torch.empty_like(grads[i], dtype=torch.float32)
        step = _step(fused, param_dtype, grad_dtype, COUPLED if weight_decay else NO_DECAY, weight_decay, maximize, nesterov)
        numbers = core.Sgd(step, momentum, 1 - dampening, -lr, first, 0)
        states = (momentum_buffer_list,) if momentum else ()
        _run("sgd", numbers, _ranges(here, params, grads, states))
    _changed(fused, params, momentum_buffer_list if momentum else ())


def _sgd_can(form, params, grads, momentum_buffer_list, *, grad_scale, found_inf, weight_decay, momentum, lr, dampening, has_sparse_grad,
             **more):
    numbers = all(type(x) in (float, int) for x in (weight_decay, momentum, lr, dampening))
    if not numbers or grad_scale is not None or found_inf is not None or has_sparse_grad:
        return False
    if cuda_kernels.sgd_writes_gradients(form, weight_decay=weight_decay, momentum=momentum, **more):
        return False
    states = [(p, g, b) for p, g, b in zip(params, grads, momentum_buffer_list) if b is not None] if momentum else []
    return _fits(params, grads) and (not states or _fits(*zip(*states)))


class _Kind:
    """One functional of torch.optim: its name, the kernel's step, whether the kernel can step, the options on which its
    arithmetic depends, how many of its arguments are lists of tensors, and which of these are states. `cuda`: the same, for parameters
    on CUDA devices."""

    def __init__(self, name, step, can, flags, lists, states, cuda=None):
        self.name, self.step, self.can, self.flags, self.lists, self.states = name, step, can, flags, lists, states
        self.cuda = cuda
        self.keywords = [p.name for p in inspect.signature(step).parameters.values() if p.kind is p.KEYWORD_ONLY]
        self.names = ()  # of the arguments of PyTorch's functions


_adam_flags = ("amsgrad", "maximize", "weight_decay", "decoupled_weight_decay")
_sgd_flags = ("momentum", "dampening", "nesterov", "maximize", "weight_decay")
_adam_states, _sgd_states = ("exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"), ("momentum_buffer_list",)
_scaled = ("grad_scale", "found_inf", "lr")  # tensors or none
ADAM = _Kind("adam", _adam, _adam_can, _adam_flags, 6, _adam_states,
             _Kind("adam", functools.partial(cuda_kernels.adam, _asked), cuda_kernels.adam_can, _adam_flags + _scaled, 6, _adam_states))
SGD = _Kind("sgd", _sgd, _sgd_can, _sgd_flags, 3, _sgd_states,
            _Kind("sgd", functools.partial(cuda_kernels.sgd, _asked), cuda_kernels.sgd_can, _sgd_flags + _scaled, 3, _sgd_states))


def _same_bits(kind, form, stock, arguments):
    """Whether the kernel gives the bits of PyTorch's function, for the options of this call, on this device. Tried once."""
    p = arguments["params"][0]
    values = (arguments[name] for name in kind.flags)
    key = (stock, p.device, p.dtype, *(v is not None if v is None or isinstance(v, torch.Tensor) else bool(v) for v in values))
    if key not in _equal:
        if p.is_cuda and torch.cuda.is_current_stream_capturing():  # where nothing can be compared
            return False
        with publishing({}):
            _equal[key] = _try(kind, form, stock, arguments, p.device)
        if not _equal[key] and (stock, p.device) not in _told:
            _told.add((stock, p.device))
            where = f" on {p.device}" if p.is_cuda else ""
            core.log(3, f"torch.optim's own steps stay{where}: a kernel gives other bits than {stock.__name__} of torch {torch.__version__}".encode())
    return _equal[key]


def _try(kind, form, stock, arguments, by):
    """`by`: the device of the kernel's tensors."""
    generator = torch.Generator().manual_seed(len(kind.flags))
    options = {name: value for name, value in arguments.items() if name not in kind.names[: kind.lists]}
    device, dtype = arguments["params"][0].device, arguments["params"][0].dtype
    cuda = device.type == "cuda"
    dtype = dtype if cuda else torch.float32
    scale = 1.0
    if isinstance(options.get("grad_scale"), torch.Tensor):
        scale = 1536.0
        options["grad_scale"] = torch.tensor(scale, device=device)
    if isinstance(options.get("found_inf"), torch.Tensor):  # the call's own may say that nothing is to be stepped
        options["found_inf"] = torch.tensor(0.0, device=device)

    counted = TRIED_COUNTS if cuda and kind.name == "adam" else (0.0,) * len(TRIED_SIZES)
    sizes = [*TRIED_SIZES, *[TRIED_SIZES[1]] * (len(counted) - len(TRIED_SIZES))]

    def random(scale):
        powers = [torch.randint(TRIED_POWERS, (size,), generator=generator, device="cpu") for size in sizes]
        return [(scale * torch.randn(len(some), generator=generator, device="cpu") * 0.5**some).to(dtype) for some in powers]

    parameters = random(1.0)
    sides = [[p.to(side, copy=True) for p in parameters] for side in (device, by)]
    if kind.name == "adam":
        means = range(3 if arguments["amsgrad"] else 2)
        states = [[[torch.zeros_like(p) for p in side] for _ in means] for side in sides]
        counts = [torch.tensor(count, device=arguments["state_steps"][0].device) for count in counted]
        for of_side in states:
            of_side += [[]] * (3 - len(means)) + [[t.clone() for t in counts]]
    else:
        states = [[[None] * len(side)] for side in sides]
    pairs = []
    for _ in range(TRIED_STEPS):
        gradients = random(0.1 * scale)
        theirs = [g.to(device, copy=True) for g in gradients]
        gradients = [g.to(by) for g in gradients]
        stock(sides[0], theirs, *states[0], **options)
        kind.step(form, sides[1], gradients, *states[1], **{name: options[name] for name in kind.keywords})
        pairs += zip(theirs, gradients)  # which some of PyTorch's functions write
    pairs += [*zip(*sides), *((a, b) for mine, theirs in zip(*states) for a, b in zip(mine, theirs) if a is not None)]
    return all(torch.equal(a.to(b.device), b) for a, b in pairs)


def _rounding_on_host(kind, form, stock, arguments):
    """With which rounding the kernels for the CPU give the bits of PyTorch's function on this device; None: with none. Tried once."""
    p = arguments["params"][0]
    key = (stock, p.device, *(bool(arguments[name]) for name in kind.flags))
    if key not in _roundings:
        run, _asked.run = _asked.run, None
        try:
            for _asked.rounding in (_ROUNDINGS[form], _rounding()):
                if _try(kind, form, stock, arguments, torch.device("cpu")):
                    break
            else:
                _asked.rounding = None
            _roundings[key] = _asked.rounding
        finally:
            _asked.run, _asked.rounding = run, None
    return _roundings[key]


def _step_on_host(kind, form, stock, arguments):
    try:
        able = _can_on_host(kind, form, arguments) and kind.can(form=form, **arguments)
    except TypeError:  # a version of PyTorch that passes something else
        able = False
    if not able:
        raise NotOnHost(f"the processors do not have what {stock.__name__} does with these options")
    rounding = _rounding_on_host(kind, form, stock, arguments)
    if rounding is None:
        raise NotOnHost(f"they give other bits than {stock.__name__} of torch {torch.__version__}")
    _asked.rounding = rounding
    try:
        kind.step(form, *(arguments[name] for name in kind.names[: kind.lists]), **{name: arguments[name] for name in kind.keywords})
    finally:
        _asked.rounding = None


def _can_on_host(kind, form, arguments):
    plain = (form != "fused" or kind.name == "adam") and _chosen != "native" and _asked.factor == 1.0
    if not plain or torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing():
        return False
    return _are_apart(arguments["params"]) and all(t is not None and t.dtype is torch.float32 for t in _written(kind, arguments))


def _written(kind, arguments):
    """The tensors of a step that a kernel takes: parameters, gradients, and the states that its options ask for."""
    states = [arguments[name] for name in kind.states if arguments.get(KIND_OF_STATE.get(name), True)]
    return [t for of_kind in (arguments["params"], arguments["grads"], *states) for t in of_kind]


def _step_by_stock(kind, stock, arguments):
    """PyTorch's function, and around it the other work of a kernel's pass."""
    params, grads = arguments["params"], arguments["grads"]
    states = [arguments[name] for name in kind.states]
    wide = [p.float() if p.dtype in NARROW and any(i < len(k) and k[i] is not None and k[i].dtype is torch.float32 for k in states) else p
            for i, p in enumerate(params)]  # those that a kernel stepped before
    if _asked.factor != 1 or any(g.dtype in NARROW and p.dtype is torch.float32 for p, g in zip(wide, grads)):
        widened = [g.float() if p.dtype is torch.float32 else g for p, g in zip(wide, grads)]
        arguments = dict(arguments, grads=[g * _asked.factor for g in widened] if _asked.factor != 1 else widened)
    stock(**dict(arguments, params=wide))
    for p, stepped in zip(params, wide):
        if stepped is not p:
            p.copy_(stepped)
    for p in params if _asked.working else ():
        working = _working_of(p)
        if working is not None:
            working.copy_(p)


def _replacement(kind_, form, stock):
    names = kind_.names = kind_.cuda.names = list(inspect.signature(stock).parameters)

    @functools.wraps(stock)
    def step(*args, **kwargs):
        arguments = dict(zip(names, args), **kwargs)
        if _asked.run and arguments["params"] and arguments["params"][0].is_cuda:
            return _step_on_host(kind_, form, stock, arguments)
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or not arguments["params"]:
            return stock(*args, **kwargs)
        kind = kind_.cuda if arguments["params"][0].is_cuda else kind_
        try:
            able = _chosen != "native" and _are_apart(arguments["params"]) and kind.can(form=form, **arguments)
        except TypeError:  # a version of PyTorch that passes something else
            able = False
        if not able or _chosen == "auto" and not _same_bits(kind, form, stock, arguments):
            return _step_by_stock(kind, stock, arguments)
        return kind.step(form, *(arguments[name] for name in names[: kind.lists]),
                         **{name: arguments[name] for name in kind.keywords})

    return step


def install(choice):
    """`choice`: CASTOR_OPTIMIZER."""
    global _chosen
    _chosen = choice
    if choice != "native":
        _replace_all()


@functools.cache
def _replace_all():
    for kind in (ADAM, SGD):
        for form in ("single_tensor", "multi_tensor", "fused"):
            patching.replace(f"torch.optim.{kind.name}._{form}_{kind.name}", functools.partial(_replacement, kind, form))
