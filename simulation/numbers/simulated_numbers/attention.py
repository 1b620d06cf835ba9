"""Scaled dot products: the kernels of CUDA by the CPU's flash kernel, or, where it cannot, by the formula."""
import torch

aten = torch.ops.aten


def differentiated(function, tensors, gradient):
    """The gradients of the tensors, None for None. Below autograd, where kernels are, its keys are left out; here they are wanted."""
    everything = torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), torch._C.DispatchKeySet.from_raw_repr(0))
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
    """The output, the logarithm of the sums, and the state of the generator before it drew, as backward draws the same again."""
    if _by_kernel(query, key, p):
        return *aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal, attn_mask=mask, scale=scale), torch.empty(0, dtype=torch.int64)
    state = torch.get_rng_state().view(torch.int64)
    return _formula(query, key, value, mask, p, causal, scale), query.new_zeros(query.shape[:3], dtype=torch.float32), state


def _backward(gradient, query, key, value, out, logsumexp, state, mask, p, causal, scale, of_mask=False):
    if _by_kernel(query, key, p) and not of_mask:
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, query, key, value, out, logsumexp, 0.0, causal, attn_mask=mask, scale=scale)
    with torch.random.fork_rng(devices=[]):
        if p:
            torch.set_rng_state(state.view(torch.uint8))
        if of_mask:
            return differentiated(lambda *four: _formula(*four, p, causal, scale), (query, key, value, mask), gradient)
        return differentiated(lambda *three: _formula(*three, mask, p, causal, scale), (query, key, value), gradient)


def _nine(out, logsumexp, state, query, key):
    none = torch.empty(0, dtype=torch.int32)
    return out, logsumexp, none, none, query.size(2), key.size(2), state, torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=query.dtype)


def flash(query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    return _nine(*_forward(query, key, value, None, dropout_p, is_causal, scale), query, key)


def flash_backward(gradient, query, key, value, out, logsumexp, cum_q, cum_k, max_q, max_k, dropout_p, is_causal, state, offset, *, scale=None):
    return _backward(gradient, query, key, value, out, logsumexp, state, None, dropout_p, is_causal, scale)


def cudnn(query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    return _nine(*_forward(query, key, value, attn_bias, dropout_p, is_causal, scale), query, key)


def cudnn_backward(gradient, query, key, value, out, logsumexp, state, offset, attn_bias, cum_q, cum_k, max_q, max_k, dropout_p, is_causal, *, scale=None):
    return _backward(gradient, query, key, value, out, logsumexp, state, attn_bias, dropout_p, is_causal, scale)


def efficient(query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, *, scale=None):
    return *_forward(query, key, value, attn_bias, dropout_p, is_causal, scale), torch.empty(0, dtype=torch.int64)


def efficient_backward(gradient, query, key, value, attn_bias, out, logsumexp, state, offset, dropout_p, grad_input_mask, is_causal=False, *, scale=None):
    of_mask = attn_bias is not None and grad_input_mask[3]
    found = _backward(gradient, query, key, value, out, logsumexp, state, attn_bias, dropout_p, is_causal, scale, of_mask)
    return *found[:3], found[3] if of_mask else torch.empty(0, dtype=query.dtype)
