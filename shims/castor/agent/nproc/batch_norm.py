"""Batch normalization over the parts of a batch: its statistics, forward and backward, are the whole batch's.

Every batch norm of PyTorch in Python ends in torch.nn.functional.batch_norm. In training each rank gives the count, the
mean and the squared deviations of its part, which are combined in rank order. Running statistics are the same on all ranks,
and those of one process. A part of weight zero (a batch smaller than the number of ranks) counts for nothing. An instance norm's
statistics are each sample's own; only its running ones are means over the samples."""
import torch

from .. import core, patching
from ..common import store, tensors
from ..process import compiler
from . import exchange, rows

OF_SAMPLES = "castor_of_samples"  # in a node's metadata: each sample has statistics of its own
HALF = (torch.float16, torch.bfloat16)


def _gathered(job, row, what):
    """A row of numbers of each rank, in rank order."""
    return exchange.gathered(job, row.contiguous(), what).view(row.dtype)


def _others(x):
    """The dimensions that are not the channels'."""
    return [d for d in range(x.dim()) if d != 1]


def _along(values, x):
    """Values of the channels, in a shape that broadcasts over x."""
    return values.view([1, -1] + [1] * (x.dim() - 2))


class _Statistics:
    """The statistics of all ranks' parts, in double precision: a sum's rounding must not depend on the number of ranks."""

    def __init__(self, job, x):
        variance, mean = torch.var_mean(x, dim=_others(x), correction=0)
        count = x.numel() / x.shape[1] if job.weight else 0.0
        row = torch.cat([mean.new_tensor([count], dtype=torch.float64), mean.double(), variance.double() * count])
        every = _gathered(job, row if count else torch.zeros_like(row), "the statistics of a batch norm")
        # Ranks with the same batch (one that the script made itself, or an evaluation's) each compute as the one process.
        self.alone = not job.is_divided and not tensors.differ(every, every[0])
        counts, means, squares = (every[:1] if self.alone else every).split([1, len(mean), len(mean)], dim=1)
        self.count = float(counts.sum())
        self.mean = (counts * means).sum(0) / self.count
        self.squares = (squares + counts * (means - self.mean) ** 2).sum(0)

    def update(self, running_mean, running_var, momentum):
        for running, now in ((running_mean, self.mean), (running_var, self.squares / (self.count - 1))):
            if running is not None:
                running.copy_((1 - momentum) * running.double() + momentum * now)


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, job, statistics, eps):
        mean = statistics.mean.to(x.dtype)
        variance = (statistics.squares / statistics.count).to(x.dtype)
        ctx.job, ctx.count, ctx.alone, ctx.eps = job, statistics.count, statistics.alone, eps
        ctx.counts = job.weight != 0  # this rank's samples are among those of the statistics
        ctx.save_for_backward(x, weight, mean, torch.rsqrt(variance + eps))
        return torch.native_batch_norm(x, weight, bias, mean, variance, False, 0.0, eps)[0]

    @staticmethod
    def backward(ctx, grad):
        if torch.is_grad_enabled():
            return _with_graph(ctx, grad)
        x, weight, mean, scale = ctx.saved_tensors
        if not ctx.job.share:
            grad = grad.nan_to_num(0.0, 0.0, 0.0)  # this part's loss is 0 / 0, and counts for nothing
        centered = x - _along(mean, x)
        sums = torch.stack([grad.sum(_others(x)), (grad * centered).sum(_others(x))])
        of_x = None
        if ctx.needs_input_grad[0]:
            whole = sums
            if not ctx.alone:
                every = _gathered(ctx.job, sums.double().flatten(), "the gradients of a batch norm")
                whole = every.sum(0).view(2, -1)
            by_mean, by_variance = (whole / ctx.count).to(x.dtype)
            factor = scale if weight is None else scale * weight
            of_x = torch.zeros_like(grad) if not ctx.counts else (
                grad - _along(by_mean, x) - centered * _along(by_variance * scale * scale, x)
            ) * _along(factor, x)
        of_weight = sums[1] * scale if ctx.needs_input_grad[1] else None
        return of_x, of_weight, sums[0] if ctx.needs_input_grad[2] else None, None, None, None


def _with_graph(ctx, grad):
    """The gradients, which get gradients themselves: of the same computed anew, by operations that PyTorch knows."""
    x, weight, _, _ = ctx.saved_tensors
    division = rows.Division(ctx.job, ctx.job.world)

    def mean_of_all(values):
        own = values.sum(_others(x))
        return own / ctx.count if ctx.alone else rows.Mean.apply(own.double() * float(ctx.counts), division) * (division.world / ctx.count)

    with torch.enable_grad():
        centered = x - _along(mean_of_all(x).to(x.dtype), x)
        out = centered * _along(torch.rsqrt(mean_of_all(centered.square()) + ctx.eps).to(x.dtype), x)
        out = out if weight is None else out * _along(weight, x)
        wanted = [t for t, needed in zip((x, weight), ctx.needs_input_grad) if needed]
        made = iter(torch.autograd.grad(out, wanted, grad, create_graph=True) if wanted else ())
        return (*(next(made) if needed else None for needed in ctx.needs_input_grad[:2]), grad.sum(_others(x)) if ctx.needs_input_grad[2] else None, None, None, None)


def _normalize(job, x, running_mean, running_var, weight, bias, momentum, eps):
    with torch.no_grad():
        wide = x.detach().float() if x.dtype in HALF else x.detach()
        statistics = _Statistics(job, wide)
        if statistics.count <= 1:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {x.size()}")
        statistics.update(running_mean, running_var, momentum)
    if x.dtype not in HALF:
        return _Normalize.apply(x, weight, bias, job, statistics, eps)
    wide = [None if t is None else t.float() for t in (x, weight, bias)]
    return _Normalize.apply(*wide, job, statistics, eps).to(x.dtype)


def _is_batch_norm(node):
    return type(node).__name__.startswith(("NativeBatchNormBackward", "CudnnBatchNormBackward"))


def refuse_unseen(nodes):
    """Refuses a batch norm that was called another way (a module of torch.jit): it sees its part of the batch only."""
    for node in nodes:
        if _is_batch_norm(node) and node._saved_training and OF_SAMPLES not in node.metadata:
            raise core.Error("castor: a batch norm in training mode was called in code of torch.jit, or by torch.batch_norm, and sees only "
                             "this rank's part of the batch: use torch.nn.BatchNorm1d, 2d or 3d as Python code, or run this script on one rank")


def _average_running(job, count, running):
    """Running statistics of which each rank has added the mean over its own samples' become those with the mean over all samples'."""
    row = torch.cat([running[0].new_tensor([count if job.weight else 0.0], dtype=torch.float64), *(t.detach().double() for t in running)])
    every = _gathered(job, row, "the statistics of an instance norm")
    if job.is_divided or tensors.differ(every, every[0]):  # else each computes as the one process
        counts = every[:, :1]
        means = (counts * every[:, 1:].where(counts > 0, 0.0)).sum(0) / counts.sum()
        for t, mean in zip(running, means.split([len(t) for t in running])):
            t.copy_(mean)


def install(job):
    def apart():
        """Each rank may have a part of the batch."""
        return job.synchronizer is not None and not job.distributed and store.active()

    def wrap_batch_norm(stock):
        @compiler.wraps(stock)
        def batch_norm(input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-05):
            if not training or eps <= 0 or not apart():
                return stock(input, running_mean, running_var, weight, bias, training, momentum, eps)
            return _normalize(job, input, running_mean, running_var, weight, bias, momentum, eps)

        compiler.not_in_graphs.append(batch_norm)  # ranks wait for each other in there
        return batch_norm

    def wrap_instance_norm(instance):
        @compiler.wraps(instance)
        def instance_norm(input, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True, momentum=0.1, eps=1e-05):
            output = instance(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
            if use_input_stats and running_mean is not None and apart():
                with torch.no_grad():
                    _average_running(job, len(input), [running_mean, running_var])
            # PyTorch's is a batch norm over the channels of all samples together, in a view.
            node = output.grad_fn
            if type(node).__name__.startswith("ViewBackward"):
                node = node.next_functions[0][0]
            if node is not None and _is_batch_norm(node):
                node.metadata[OF_SAMPLES] = True
            return output

        compiler.not_in_graphs.append(instance_norm)  # the same
        return instance_norm

    patching.replace("torch.nn.functional.batch_norm", wrap_batch_norm)
    patching.replace("torch.nn.functional.instance_norm", wrap_instance_norm)
