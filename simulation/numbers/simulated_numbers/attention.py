"""Scaled dot products: the kernels of CUDA by the CPU's flash kernel, or, where it cannot, by the formula."""
import itertools

import torch

aten = torch.ops.aten
KEPT = 4096
_states = {}  # of the generator before a forward pass drew, by the number that is its seed; the last ones
_numbers = itertools.count(1)
NONE_DRAWN = 0
_OUTSIDE = torch._C._dispatch_tls_local_exclude_set()  # what is left out where no kernel runs: autocast, which nobody has asked for


def _keep_state():
    number = next(_numbers)
    _states[number] = torch.get_rng_state()
    _states.pop(number - KEPT, None)
    return number


def _state_of(seed):
    state = _states.get(int(seed))
    if state is None:
        raise RuntimeError(f"a backward pass of attention with dropout came after more than {KEPT} other forward passes; of these the simulation has random numbers")
    return state


def differentiated(function, tensors, gradient):
    """The gradients of the tensors, None for None. Below autograd, where kernels are, its keys are left out; here they are wanted."""
    everything = torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), _OUTSIDE)
    with everything, torch.enable_grad():
        leaves = [None if tensor is None else tensor.detach().requires_grad_() for tensor in tensors]
        found = torch.autograd.grad(function(*leaves), [leaf for leaf in leaves if leaf is not None], gradient)
    found = iter(found)
    return [None if leaf is None else next(found) for leaf in leaves]


def _formula(query, key, value, mask, p, causal, scale):
    shared = query.size(1) != key.size(1)
    return aten._scaled_dot_product_attention_math(query, key, value, mask, p, causal, None, scale=scale, enable_gqa=shared)[0]


def _by_kernel(query, key, p):
    return not p and query.size(1) == key.size(1)


def _forward(query, key, value, mask, p, causal, scale):
    """The output, the logarithm of the sums, and a seed, by which backward draws the same again."""
    if _by_kernel(query, key, p):
        found = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)
        return *found, torch.tensor(NONE_DRAWN)
    seed = torch.tensor(_keep_state() if p else NONE_DRAWN)
    return _formula(query, key, value, mask, p, causal, scale), query.new_zeros(query.shape[:3], dtype=torch.float32), seed


def _backward(gradient, query, key, value, out, logsumexp, seed, mask, p, causal, scale, of_mask=False):
    if _by_kernel(query, key, p) and not of_mask:
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, query, key, value, out, logsumexp, 0.0, causal, attn_mask=mask, scale=scale)
    with torch.random.fork_rng(devices=[]):
        if p:
            torch.set_rng_state(_state_of(seed))
        if of_mask:
            return differentiated(lambda *four: _formula(*four, p, causal, scale), (query, key, value, mask), gradient)
        return differentiated(lambda *three: _formula(*three, mask, p, causal, scale), (query, key, value), gradient)


def _nine(out, logsumexp, seed, query, key):
    return out, logsumexp, None, None, query.size(2), key.size(2), seed, torch.zeros((), dtype=torch.int64), torch.empty(0, dtype=query.dtype)


def flash(query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    return _nine(*_forward(query, key, value, None, dropout_p, is_causal, scale), query, key)


def flash_backward(gradient, query, key, value, out, logsumexp, cum_q, cum_k, max_q, max_k, dropout_p, is_causal, seed, offset, *, scale=None):
    return _backward(gradient, query, key, value, out, logsumexp, seed, None, dropout_p, is_causal, scale)


def cudnn(query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    out, logsumexp, seed = _forward(query, key, value, attn_bias, dropout_p, is_causal, scale)
    return _nine(out, logsumexp.unsqueeze(-1), seed, query, key)


def cudnn_backward(gradient, query, key, value, out, logsumexp, seed, offset, attn_bias, cum_q, cum_k, max_q, max_k, dropout_p, is_causal, *, scale=None):
    return _backward(gradient, query, key, value, out, logsumexp.squeeze(-1), seed, attn_bias, dropout_p, is_causal, scale)


def efficient(query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, *, scale=None):
    out, logsumexp, seed = _forward(query, key, value, attn_bias, dropout_p, is_causal, scale)
    rows = logsumexp.size(2)
    padded = torch.nn.functional.pad(logsumexp, (0, -rows % 32 if compute_log_sumexp else -rows))
    return out, padded, seed, torch.zeros((), dtype=torch.int64)


def efficient_backward(gradient, query, key, value, attn_bias, out, logsumexp, seed, offset, dropout_p, grad_input_mask, is_causal=False, *, scale=None):
    of_mask = attn_bias is not None and grad_input_mask[3]
    found = _backward(gradient, query, key, value, out, logsumexp[..., :query.size(2)], seed, attn_bias, dropout_p, is_causal, scale, of_mask)
    return *found[:3], found[3] if of_mask else None
