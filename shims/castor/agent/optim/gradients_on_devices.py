"""Operations of scripts on all gradients of ranks on devices: clipping, unscaling, zeroing.

Where owners alone keep some sums they do it, if every rank calls the operation on gradients that nobody has touched; what all ranks have, each
changes alike. Else each rank works on what it looks at, as in plain PyTorch."""
import contextlib
import zlib

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grad

from ..common import tensors
from ..device_ranks import entries, sums
from ..precision import masters


class Gradients:
    """The gradients of a call, of which ranks on devices have sums.

    pairs   (parameter, entry) of each that has one
    able    this rank's are sums that nobody has changed
    single  owners alone have some of them"""

    def __init__(self, parameters):
        self.pairs = [(p, entries.entry_of(p)) for p in parameters if sums.has_grad(p)]
        known = [entry for _, entry in self.pairs if entry is not None]
        self.group = known[0].group if known else None
        self.able = self.group is not None and all(
            entry is not None and entry.group is self.group and entry.synced and entry.is_untouched(sums.grad_of(p)) for p, entry in self.pairs)
        self.single = any(entry.is_single for entry in known)

    def by_owners(self, *operation):
        """Whether owners do it. On every rank together."""
        if not self.single:
            return False
        key = zlib.crc32(repr((operation, [tuple(p.shape) for p, _ in self.pairs])).encode()) | self.group.operations << 32
        return self.group.control.every_rank_can(key, self.able and (masters.dtype is not None or len({p.dtype for p, _ in self.pairs}) == 1))

    @property
    def device(self):
        return self.pairs[0][0].device

    def here(self):
        """Of those of this rank: (number, gradient)."""
        return [(number, grad) for number, grad in enumerate(sums.grad_of(p) for p, _ in self.pairs) if grad is not None]

    def of_owners(self):
        """Each gradient on one rank: (number, gradient)."""
        return [(number, grad) for number, grad in self.here() if self.pairs[number][1].mine]

    @contextlib.contextmanager
    def changing(self):
        """What is changed here is changed alike on all ranks."""
        with contextlib.ExitStack() as changes, sums.unseen():
            for keep in sums.keeps_of(entry for _, entry in self.pairs):
                changes.enter_context(keep.changing())
            yield
            self.see()

    def see(self):
        for p, entry in self.pairs:
            entry.see(sums.grad_of(p))

    def all_reduce(self, values, operation=dist.ReduceOp.SUM):
        dist.all_reduce(values, operation, group=self.group.process_group)

    @contextlib.contextmanager
    def alike(self, *operation):
        """Each rank does the same to all gradients, of which it has its own. That it was the same is compared before the step."""
        able = self.able and not self.single
        if self.group is not None:
            self.group.operations = zlib.crc32(repr(operation).encode(), self.group.operations)
        yield
        if able:
            self.see()


def clip_grad_norm(gradients, max_norm, norm_type, error_if_nonfinite, foreach):
    """PyTorch's, with the norms of owners."""
    own = gradients.of_owners()
    wide = None if masters.dtype is None else torch.float32
    norms = torch.zeros(len(gradients.pairs), dtype=wide or gradients.pairs[0][0].dtype, device=gradients.device)
    if own:
        numbers, grads = zip(*own)
        foreach = foreach is None or foreach
        found = torch._foreach_norm(grads, norm_type, dtype=wide) if foreach else [torch.linalg.vector_norm(t, norm_type, dtype=wide) for t in grads]
        norms[list(numbers)] = torch.stack(list(found))
    gradients.all_reduce(norms)
    total = torch.linalg.vector_norm(norms, norm_type)
    if error_if_nonfinite and tensors.not_finite(total):
        clip_grad._get_total_norm([total], norm_type, True)  # raises PyTorch's own error
    coefficient = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    with gradients.changing():
        here = [grad for _, grad in gradients.here()]
        if here and foreach is not False:
            torch._foreach_mul_(here, coefficient)
        else:
            for grad in here:
                grad.mul_(coefficient)
    return total


def clip_grad_value(gradients, clip_value):
    with gradients.changing():
        for _, grad in gradients.here():
            grad.clamp_(-clip_value, clip_value)


def unscale(gradients, found_inf, inv_scale):
    with gradients.changing():
        here = [grad for _, grad in gradients.here()]
        if here:
            torch._amp_foreach_non_finite_check_and_unscale_(here, found_inf, inv_scale)
    gradients.all_reduce(found_inf, dist.ReduceOp.MAX)


def zero(parameters, set_to_none):
    """Those that another rank has."""
    for p in parameters:
        if sums.is_elsewhere(p):
            sums.forget(p)
            if not set_to_none:
                p.grad = torch.zeros_like(p, dtype=masters.gradient_dtype(p))
