"""Castor's CUDA kernels (kernels/cuda_steps.h) for the steps of torch.optim on one CUDA device, as kernels.py calls them. A step of float
parameters is one pass in each of PyTorch's forms; a fused step also takes 16-bit parameters with states of their type.

`asked`: the factor and the working copies of kernels.publishing."""
import ctypes
import functools
from collections import defaultdict

import torch

from .. import core
from ..common import tensors

NARROW = (torch.bfloat16, torch.float16)
MODES = {"multi_tensor": core.CUDA_FOREACH, "single_tensor": core.CUDA_SINGLE, "fused": core.CUDA_FUSED}


@functools.cache
def _loaded():
    """Whether the kernels are there. Asked when the first tensor is on a device, so the driver is."""
    try:
        core.cuda_kernels()
    except core.Error as error:
        core.log(3, f"torch.optim's own steps stay on CUDA devices: {error}".encode())
        return False
    return True


def _fits(fused, *lists):
    """Whether a kernel steps these: plain tensors on one device; each parameter's gradient and states have its order of elements. All
    of one tensor have one type, float but for fused steps; the gradient of a float parameter may have 16 bits."""
    device = lists[0][0].device
    for each in zip(*lists):
        first = each[0]
        strides = first.stride()
        if first.dtype is not torch.float32 and not (fused and first.dtype in NARROW):
            return False
        if not (first.is_contiguous() or tensors.is_dense(first)):
            return False
        for t in each:
            if type(t) not in (torch.Tensor, torch.nn.Parameter) or t.device != device or t.layout is not torch.strided:
                return False
            if t.dtype is not first.dtype and not (t is each[1] and t.dtype in NARROW and first.dtype is torch.float32):
                return False
            if t.shape != first.shape or t.stride() != strides or t.is_inference():
                return False
    return True


def _is_number_there(t, device):
    """Whether a kernel reads this tensor as one float."""
    return type(t) is torch.Tensor and t.device == device and t.dtype is torch.float32 and t.numel() == 1


def _pointer(t):
    return t.data_ptr() if isinstance(t, torch.Tensor) else None


def _numbers_are(fused, device, lr, grad_scale, found_inf, *numbers):
    plain = all(type(x) in (float, int) for x in numbers)
    pointers = [x for x in (lr, grad_scale, found_inf) if x is not None and type(x) not in (float, int)]
    return plain and lr is not None and (not pointers or fused and all(_is_number_there(t, device) for t in pointers))


def adam_can(form, params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, *, grad_scale, found_inf, amsgrad, has_complex,
             beta1, beta2, lr, weight_decay, eps, capturable, differentiable, **more):
    fused, device = form == "fused", params[0].device
    if has_complex or differentiable or (capturable and not fused):
        return False
    if not _numbers_are(fused, device, lr, grad_scale, found_inf, beta1, beta2, weight_decay, eps):
        return False
    counted_on = device if fused else torch.device("cpu")
    if not all(t.dtype is torch.float32 and t.device == counted_on for t in state_steps):
        return False
    return _fits(fused, params, grads, exp_avgs, exp_avg_sqs, *((max_exp_avg_sqs,) if amsgrad else ())) and _loaded()


def sgd_writes_gradients(form, *, weight_decay, momentum, nesterov, maximize):
    """Whether PyTorch's step leaves its direction in the gradients, where scripts may read it: no kernel does."""
    return form == "multi_tensor" and nesterov and bool(momentum) and weight_decay == 0 and not maximize


def sgd_can(form, params, grads, momentum_buffer_list, *, grad_scale, found_inf, weight_decay, momentum, lr, dampening,
            has_sparse_grad, **more):
    fused, device = form == "fused", params[0].device
    if has_sparse_grad or not _numbers_are(fused, device, lr, grad_scale, found_inf, weight_decay, momentum, dampening):
        return False
    if sgd_writes_gradients(form, weight_decay=weight_decay, momentum=momentum, **more):
        return False
    states = [(p, g, b) for p, g, b in zip(params, grads, momentum_buffer_list) if b is not None] if momentum else []
    if fused and momentum and len(states) not in (0, len(params)):
        return False
    return _fits(fused, params, grads) and (not states or _fits(fused, *zip(*states))) and _loaded()


def _groups(asked, params, grads, more=None):
    """The indices that one call may step: {(type, type of the gradient, type of the working copy, value in `more`): indices}."""
    found = defaultdict(list)
    for i, (p, g) in enumerate(zip(params, grads)):
        working = asked.working.get(p.data_ptr()) if asked.working else None
        dtypes = (tensors.DTYPES[p.dtype], tensors.DTYPES[g.dtype], tensors.DTYPES[(p if working is None else working).dtype])
        found[(*dtypes, more[i] if more else None)].append(i)
    return found.items()


def _step(asked, form, dtypes, decay_kind, maximize, variation, lr, weight_decay, grad_scale, found_inf):
    pointers = (_pointer(found_inf), _pointer(grad_scale), _pointer(lr), None)
    number = 0.0 if isinstance(lr, torch.Tensor) else lr
    return core.CudaStep(*dtypes, MODES[form], decay_kind, maximize, variation, 0, *pointers, number, weight_decay, asked.factor, 1.0)


def _rows(asked, places, params, grads, states, counts=None, numbers=None):
    rows = (core.CudaTensor * len(places))()
    for row, i in zip(rows, places):
        p = params[i]
        row.param, row.grad, row.numel = p.data_ptr(), grads[i].data_ptr(), p.numel()
        if asked.working and p.data_ptr() in asked.working:
            row.working = asked.working[p.data_ptr()].data_ptr()
        for kind, of_kind in enumerate(states):
            row.states[kind] = of_kind[i].data_ptr()
        if counts is not None:
            row.step = counts[i].data_ptr()
        if numbers is not None:
            row.root_divisor, row.negative_step = numbers[i]
    return rows


def _launch(function, numbers, rows, device):
    with torch.cuda.device(device):
        function(ctypes.byref(numbers), rows, len(rows), torch.cuda.current_stream(device).cuda_stream)


def _changed(form, *lists):
    """Tells autograd that these were written, which PyTorch's fused functions do not."""
    if form != "fused":
        torch.autograd.graph.increment_version([t for of_kind in lists for t in of_kind])


def adam(asked, form, params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, *, grad_scale, found_inf, amsgrad, beta1, beta2,
         lr, weight_decay, eps, maximize, decoupled_weight_decay):
    decay = core.DECAY_NONE if weight_decay == 0 else core.DECAY_DECOUPLED if decoupled_weight_decay else core.DECAY_COUPLED
    states = (exp_avgs, exp_avg_sqs, max_exp_avg_sqs) if amsgrad else (exp_avgs, exp_avg_sqs)
    torch._foreach_add_(state_steps, 1)
    counts = numbers = None
    if form == "fused":
        counts = state_steps
    else:
        of_count = {t: ((1 - beta2**t)**0.5, -(lr / (1 - beta1**t))) for t in {t.item() for t in state_steps}}
        numbers = [of_count[t.item()] for t in state_steps]
    for (*dtypes, _), here in _groups(asked, params, grads):
        step = _step(asked, form, dtypes, decay, maximize, amsgrad, lr, weight_decay, grad_scale, found_inf)
        rows = _rows(asked, here, params, grads, states, counts, numbers)
        _launch(core.cuda_adam_step, core.CudaAdam(step, beta1, beta2, eps), rows, params[0].device)
    if found_inf is not None:  # a step that was left out does not count
        torch._foreach_sub_(state_steps, [found_inf] * len(state_steps))
    _changed(form, params, *states)


def sgd(asked, form, params, grads, momentum_buffer_list, *, grad_scale, found_inf, weight_decay, momentum, lr, dampening, nesterov,
        maximize):
    decay = core.DECAY_COUPLED if weight_decay else core.DECAY_NONE
    first_of = [momentum != 0 and b is None for b in momentum_buffer_list] if momentum else [False] * len(params)
    for i, first in enumerate(first_of):
        if first:  # of a step that an overflow leaves out, zeros remain
            momentum_buffer_list[i] = torch.zeros_like(grads[i], dtype=params[i].dtype)
    states = (momentum_buffer_list,) if momentum else ()
    for (*dtypes, first), here in _groups(asked, params, grads, first_of):
        step = _step(asked, form, dtypes, decay, maximize, nesterov, lr, weight_decay, grad_scale, found_inf)
        rows = _rows(asked, here, params, grads, states)
        _launch(core.cuda_sgd_step, core.CudaSgd(step, momentum, dampening, first, 0), rows, params[0].device)
    _changed(form, params, *states)
