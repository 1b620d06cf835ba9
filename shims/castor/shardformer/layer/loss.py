"""Log-probabilities and cross entropy of logits whose vocabulary is divided over tensor-parallel ranks (Colossal-AI: colossalai.shardformer.layer.loss).

Whether a rank has its part of the vocabulary or all of it is seen from the logits, and never assumed."""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

__all__ = ["cross_entropy_1d", "dist_cross_entropy", "dist_log_prob", "dist_log_prob_1d"]

_IGNORED = -100


class _LogProb(torch.autograd.Function):
    """log_softmax of the parts put together, at the targets. A target that no part has gives 0, and no gradient."""

    @staticmethod
    def forward(ctx, logits, target, group, begin, total):
        wide = torch.promote_types(logits.dtype, torch.float32)
        most = logits.detach().amax(-1).to(wide)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
        shifted = logits.to(wide) - most.unsqueeze(-1)
        exponents = shifted.exp()
        sums = exponents.sum(-1)
        dist.all_reduce(sums, group=group)
        own = target - begin
        here = (own >= 0) & (own < logits.size(-1))
        own = own.masked_fill(~here, 0).unsqueeze(-1)
        found = (shifted.gather(-1, own).squeeze(-1) - sums.log()).masked_fill(~here, 0.0)
        dist.all_reduce(found, group=group)
        ctx.save_for_backward(exponents.div_(sums.unsqueeze(-1)), own, here, (target >= 0) & (target < total))
        ctx.dtype = logits.dtype
        return found.unsqueeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        share, own, here, anywhere = ctx.saved_tensors
        of_logits = share.neg().scatter_add(-1, own, here.unsqueeze(-1).to(share.dtype))
        of_logits = of_logits * gradient * anywhere.unsqueeze(-1)
        return of_logits.to(ctx.dtype), None, None, None, None


def _layout(logits, group, vocab_size):
    """(the first entry of this rank's part, the entries of all parts); None: every rank has the whole vocabulary. ValueError on all ranks: the parts do
    not make it up, or it cannot be told."""
    own = torch.tensor([logits.size(-1), 0.0], dtype=torch.float64, device=logits.device)
    with torch.no_grad():
        own[1] = torch.nan_to_num(logits.detach().double()).sum() if vocab_size is None else 0.0
    every = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, own, group=group)
    sizes = [int(one[0]) for one in every]
    if len(sizes) == 1:
        return None
    if vocab_size is None:
        if len(set(sizes)) == 1 and len({float(one[1]) for one in every}) == 1:
            raise ValueError("castor: the ranks' logits are alike, so they may be parts or the whole vocabulary: give vocab_size, the entries of all parts")
    elif all(size == vocab_size for size in sizes):
        return None
    elif sum(sizes) != vocab_size:
        raise ValueError(f"castor: the ranks have logits of {sizes} entries, and vocab_size is {vocab_size}: expected parts that add up to it, or the whole on each")
    return sum(sizes[:dist.get_rank(group)]), sum(sizes)


def dist_log_prob_1d(vocab_logits, labels, process_group=None, vocab_size=None, dtype=None):
    """The log-probability of each label.

    Args:
        vocab_logits: a float tensor of shape (..., entries): this rank's part of the vocabulary, in the order of ranks, or on each rank the whole one.
        labels: int64, of shape (...), the same on each rank: numbers of the whole vocabulary. Others (-100) give 0.
        process_group: of the ranks that have the parts; None: all. Each of them calls it.
        vocab_size: the entries of all parts. Without it, logits are parts.
        dtype: accepted; numbers are summed in float32, or in float64 for logits of it.

    Returns (..., 1), of float32 at least, with a gradient for vocab_logits. ValueError on all ranks: the parts do not add up to vocab_size."""
    layout = _layout(vocab_logits, process_group, vocab_size)
    if layout is not None:
        return _LogProb.apply(vocab_logits, labels, process_group, *layout)
    wide = torch.promote_types(vocab_logits.dtype, torch.float32)
    there = (labels >= 0) & (labels < vocab_logits.size(-1))
    found = F.log_softmax(vocab_logits.to(wide), -1).gather(-1, labels.masked_fill(~there, 0).unsqueeze(-1))
    return torch.where(there.unsqueeze(-1), found, 0.0)


def cross_entropy_1d(vocab_logits, labels, ignore_index=_IGNORED, process_group=None, vocab_size=None, dtype=None, mode="mean"):
    """The cross entropy of logits and labels, as dist_log_prob_1d takes them: the mean, or with mode="sum" the sum, over labels that are not ignore_index.
    Returns a scalar. ValueError: another mode."""
    if mode not in ("mean", "sum"):
        raise ValueError(f"castor: cross_entropy_1d(mode={mode!r}): expected 'mean' or 'sum'")
    counted = labels != ignore_index
    found = dist_log_prob_1d(vocab_logits, torch.where(counted, labels, -1), process_group, vocab_size, dtype).squeeze(-1)
    total = -torch.where(counted, found, 0.0).sum()
    return total / counted.sum() if mode == "mean" else total


def _divided(shard_config):
    if shard_config.enable_sequence_parallelism and shard_config.sequence_parallel_size > 1:
        raise ValueError("castor: ShardConfig(enable_sequence_parallelism=True): sequences are not divided here; use tensor parallelism")
    return shard_config.enable_tensor_parallelism and shard_config.parallel_output and shard_config.tensor_parallel_size > 1


def _shifted(labels, logits):
    labels, logits = labels[..., 1:].contiguous(), logits[..., :-1, :].contiguous()
    if labels.shape != logits.shape[:-1]:
        raise ValueError(f"castor: labels of shape {tuple(labels.shape)} for logits of shape {tuple(logits.shape)}, after both were shifted")
    return labels, logits


def dist_log_prob(labels, logits, shard_config, vocab_size, dtype, seq_dim=1):
    """The log-probability of each next token.

    Args:
        labels: int64 of shape (batch, sequence): the tokens.
        logits: floats of shape (batch, sequence, entries). entries: with shard_config's tensor parallelism and parallel_output=True each rank's part of
            the vocabulary, or the whole one if they are vocab_size; otherwise the whole one.
        shard_config: a ShardConfig; HybridParallelPlugin.shard_config is the one of the models that it has boosted.
        vocab_size, dtype: as dist_log_prob_1d takes them. seq_dim: accepted.

    Returns (batch, sequence - 1, 1): position i has that of labels[:, i + 1] by logits[:, i]. ValueError: shapes do not fit."""
    labels, logits = _shifted(labels, logits)
    if _divided(shard_config):
        return dist_log_prob_1d(logits, labels, shard_config.tensor_parallel_process_group, vocab_size, dtype)
    return F.log_softmax(logits, -1).gather(-1, labels.unsqueeze(-1))


def dist_cross_entropy(labels, logits, shard_config, vocab_size, dtype, seq_dim=1):
    """The mean cross entropy of next tokens that are not -100, a scalar; arguments as for dist_log_prob."""
    labels, logits = _shifted(labels, logits)
    if _divided(shard_config):
        return cross_entropy_1d(logits, labels, _IGNORED, shard_config.tensor_parallel_process_group, vocab_size, dtype)
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=_IGNORED)
