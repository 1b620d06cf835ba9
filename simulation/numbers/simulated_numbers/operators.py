"""Operators whose stand-in is not simply the CPU's kernel of the same name."""
import dataclasses

import torch

from . import attention, rnn

aten = torch.ops.aten
MULTIPLIED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # by the simulated cuBLAS


@dataclasses.dataclass
class StandIn:
    compute: object = None  # in place of the CPU's kernel; takes and gives CPU tensors
    plain: object = None  # says of arguments that the wheel's kernel has numbers of its own: products and copies of the simulation
    direct: object = None  # does it all, on the device's tensors
    launches: bool = True  # the wheel's kernel is called as well
    everywhere: bool = False  # registered for CUDA although PyTorch composes it


# Their kernels need a library of NVIDIA's that does not start here, or read counts that a kernel of theirs has made.
NOT_LAUNCHED = ("linalg_", "_linalg", "_fft_", "cholesky", "lu_", "triangular_solve", "ormqr", "geqrf", "embedding_dense_backward",
                "_embedding_bag", "histc", "_histogramdd", "_unique", "unique")


def ordinary(name):
    return StandIn(launches=not name.startswith(NOT_LAUNCHED))


def _matrix(tensor):
    """cuBLAS takes it as it is; of others the wheel's kernel makes a copy first."""
    return tensor.dim() < 2 or tensor.is_contiguous() or tensor.transpose(-1, -2).is_contiguous()


def product_is_plain(*args, **kwargs):
    tensors = [value for value in (*args, kwargs.get("out")) if isinstance(value, torch.Tensor)]
    return all(one.dtype in MULTIPLIED and one.dtype == tensors[0].dtype and _matrix(one) and not one.is_conj() for one in tensors)


def sum_is_plain(added, left, right, **kwargs):
    """Of addmm and its like: what is added is copied by a kernel unless it has the result's sizes, or is a bias for cuBLASLt."""
    if not product_is_plain(added, left, right, **kwargs):
        return False
    if right.dim() == 1:
        return added.is_contiguous() and added.dim() == 1 and added.size(0) == left.size(0)
    sizes = (*left.shape[:-1], right.shape[-1])
    if added.is_contiguous() and added.shape == sizes:
        return True
    bias = added.dim() == 1 and added.is_contiguous() and left.dim() == 2 and added.size(0) == sizes[-1]
    return bias and min(*left.shape, *right.shape) > 1 and kwargs.get("beta", 1) == kwargs.get("alpha", 1) == 1


def copy_is_plain(target, source, non_blocking=False):
    if torch.nn.parameter.is_lazy(source):  # it has no elements, and no shape that it tells
        return True
    return (target.dtype == source.dtype and target.shape == source.shape and target.is_contiguous() and source.is_contiguous()
            and target.is_conj() == source.is_conj() and target.is_neg() == source.is_neg())


def dropout(source, p, train):
    """As torch.nn.functional.dropout computes it on the CPU."""
    if not train or p == 0 or not source.numel():
        return source.clone(), torch.ones_like(source, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(source), torch.zeros_like(source, dtype=torch.bool)
    noise = torch.empty_like(source).bernoulli_(1 - p)
    mask = noise.bool()
    return source * noise.div_(1 - p), mask


def dropout_backward(gradient, mask, scale):
    return gradient * mask.to(gradient.dtype).div(1 / scale) if scale else torch.zeros_like(gradient)


def grid_sampler(source, grid):
    return aten.grid_sampler_2d(source, grid, 0, 0, True)


def grid_sampler_backward(source, grid, gradient):
    return aten.grid_sampler_2d_backward(gradient, source, grid, 0, 0, True, [True, True])


def _to_float(operator):
    """Softmax of 16 bits that gives floats, as autocast asks for it: the CPU has no such kernel."""
    return lambda source, dim, half_to_float, **out: operator(source.float() if half_to_float else source, dim, False, **out)


def _from_float(operator):
    """Its backward, which gives 16 bits."""

    def compute(gradient, result, dim, input_dtype, **out):
        if gradient.dtype is input_dtype:
            return operator(gradient, result, dim, input_dtype, **out)
        made = operator(gradient, result, dim, gradient.dtype).to(input_dtype)
        return next((given.copy_(made) for given in out.values()), made)

    return compute


def batch_norm(source, weight, bias, mean, variance, training, momentum, epsilon):
    out, saved, inverse = aten.native_batch_norm(source, weight, bias, mean, variance, training, momentum, epsilon)
    return out, saved, inverse, torch.empty(0, dtype=torch.uint8)


def batch_norm_backward(source, gradient, weight, mean, variance, saved, inverse, epsilon, reserve):
    return aten.native_batch_norm_backward(gradient, source, weight, mean, variance, saved, inverse, True, epsilon, [True] * 3)


def layer_norm_backward(gradient, source, sizes, mean, inverse, weight, bias, wanted):
    """The device keeps the mean of 16-bit numbers in 32 bits, where the CPU has it as its forward gave it: in the weight's type."""
    kept = source.dtype if weight is None else weight.dtype
    return aten.native_layer_norm_backward(gradient, source, sizes, mean.to(kept), inverse.to(kept), weight, bias, wanted)


def native_batch_norm_backward(gradient, source, weight, mean, variance, saved, inverse, train, epsilon, wanted):
    """As layer_norm_backward's."""
    kept = source.dtype if weight is None else weight.dtype
    saved, inverse = (None if one is None else one.to(kept) for one in (saved, inverse))
    return aten.native_batch_norm_backward(gradient, source, weight, mean, variance, saved, inverse, train, epsilon, wanted)


def stand_ins():
    """By the operator's name, for all its overloads."""
    products = dict.fromkeys(("mm", "bmm", "mv", "dot"), StandIn(plain=product_is_plain))
    sums = dict.fromkeys(("addmm", "addmm_", "baddbmm", "baddbmm_", "addmv", "addmv_"), StandIn(plain=sum_is_plain))
    composed = dict.fromkeys(("convolution", "convolution_backward"), StandIn(launches=False, everywhere=True))
    attentions = {
        f"_scaled_dot_product_{name}{end}": StandIn(getattr(attention, name.removesuffix("_attention") + end), launches=False)
        for name in ("flash_attention", "efficient_attention", "cudnn_attention") for end in ("", "_backward")
    }
    return {
        **products, **sums, **composed,
        "copy_": StandIn(plain=copy_is_plain, everywhere=True),
        "_softmax": StandIn(_to_float(aten._softmax)),
        "_log_softmax": StandIn(_to_float(aten._log_softmax)),
        "_softmax_backward_data": StandIn(_from_float(aten._softmax_backward_data)),
        "_log_softmax_backward_data": StandIn(_from_float(aten._log_softmax_backward_data)),
        "native_dropout": StandIn(dropout),
        "native_dropout_backward": StandIn(dropout_backward),
        **attentions,
        "native_layer_norm_backward": StandIn(layer_norm_backward),
        "native_batch_norm_backward": StandIn(native_batch_norm_backward),
        "cudnn_batch_norm": StandIn(batch_norm, launches=False),
        "cudnn_batch_norm_backward": StandIn(batch_norm_backward, launches=False),
        "cudnn_grid_sampler": StandIn(grid_sampler, launches=False),
        "cudnn_grid_sampler_backward": StandIn(grid_sampler_backward, launches=False),
        "cudnn_is_acceptable": StandIn(lambda tensor: False, launches=False, everywhere=True),  # asked by networks that recur
        "_use_cudnn_ctc_loss": StandIn(lambda *args: False, launches=False),
        "_cudnn_rnn_flatten_weight": StandIn(direct=rnn.flatten_weights, launches=False),
        "_thnn_fused_lstm_cell": StandIn(rnn.lstm_cell),
        "_thnn_fused_lstm_cell_backward_impl": StandIn(rnn.lstm_cell_backward),
        "_thnn_fused_gru_cell": StandIn(rnn.gru_cell),
        "_thnn_fused_gru_cell_backward": StandIn(rnn.gru_cell_backward),
    }
