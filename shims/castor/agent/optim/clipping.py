"""In-place operations on all gradients, done once for every rank by the owners: clipping, unscaling, zeroing.

If not all ranks call one, or some rank's gradients are not all untouched sums, each rank does it in its own pages (the stock
function): slower, never different."""
import contextlib
import functools
import zlib

import torch
from torch.nn.utils import clip_grad
from torch.utils import _foreach_utils

from .. import core, patching
from ..backward import accumulation
from ..common import parts, store, tensors
from ..device_ranks import entries, sums
from ..precision import masters
from . import gradients_on_devices


_job = None  # the ranks of a single-process script


class _Gradients:
    """The gradients of a call, if owners can work on them in the sums."""

    def __init__(self, parameters):
        self.pairs = [(p, store.entry_of(p)) for p in parameters if p.grad is not None]
        shared = [e for _, e in self.pairs if e is not None and e.shared]
        self.group = shared[0].group if shared else None
        self.able = self.group is not None and all(
            e is not None and e.group is self.group and e.synced and (not e.shared or e.shows_window(p.grad)) for p, e in self.pairs
        ) and not store.edited(shared) and (masters.dtype is not None or len({p.grad.dtype for p, _ in self.pairs}) == 1)

    def norm_dtype(self):
        """The gradients' type; under CASTOR_PRECISION float, as that of the gradients that the optimizer will see."""
        return self.pairs[0][0].grad.dtype if masters.dtype is None else torch.float32

    def by_owners(self, *operation):
        """Whether the owners do it: every rank calls this operation on these gradients, and is able to. Where one node alone has a sum, those of all nodes."""
        if self.group is None:
            return False
        ids = [None if e is None else e.handle_id for _, e in self.pairs]
        key = zlib.crc32(repr((operation, ids)).encode()) | self.group.sums << 32
        able = self.group.every_rank_can(key, self.able)
        return (not self.group.single or self.group.across.alike(key if able else -1)) and able

    def mine(self):
        """The tensors that this rank works on: the sums that it owns, and its own copies of the small ones. Yields lists, each of
        which is in memory in its turn."""
        own = [(t, e) for t, (_, e) in zip(map(self.written, self.pairs), self.pairs) if t is not None]
        for number, part in enumerate(parts.divide(self.group, own, lambda each: each[1].bytes)):
            with parts.in_memory(self.group, parts.SUMS, number, [e for _, e in part]):
                yield [t for t, _ in part]

    def begin(self):
        """Before the owners write: ranks of other nodes have read the sums that their script wanted to see."""
        if self.group.single:
            self.group.across.meet("an operation on all gradients")

    @staticmethod
    def written(pair):
        p, e = pair
        return p.grad.detach() if not e.shared else e.sum_alias if e.summed_here else None

    def done(self, what, number):
        """After the owners wrote: no rank goes on before all have. number: with what, if they did, which nodes that have sums of their own compare in their next exchange."""
        if self.group.across is not None and number is not None:
            core.agreed_add(self.group.handle, number)
        torch.autograd.graph.increment_version([p.grad for p, e in self.pairs if e.shared])
        if self.group.single:
            self.group.across.changed([e for _, e in self.pairs], sums=True)
        else:
            self.group.barrier(what)


def _as_list(parameters):
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def _norms(gradients, norm_type, foreach):
    """The norm of each gradient: owners compute theirs, every rank gets all."""
    norms, dtype = [], None if masters.dtype is None else torch.float32
    for own in gradients.mine():  # a rank may own none of them
        if own and (foreach is None or foreach):
            norms += torch._foreach_norm(own, norm_type, dtype=dtype)
        else:
            norms += [torch.linalg.vector_norm(t, norm_type, dtype=dtype) for t in own]
    values = iter(norms)
    mine = [0.0 if gradients.written(pair) is None else next(values).item() for pair in gradients.pairs]
    every = gradients.group.gather(mine, "the norms of the gradients")
    rank = gradients.group.rank
    norms = [every[e.owner if e.shared else rank][i] for i, (_, e) in enumerate(gradients.pairs)]
    if gradients.group.single:
        total = gradients.group.across.total(norms)
        norms = [total[i] if e.single_sum else norm for i, ((_, e), norm) in enumerate(zip(gradients.pairs, norms))]
    return norms


def _have_masters(parameters):
    """Whether some of their gradients are of 16 bits, and the optimizer will see them as floats."""
    return masters.dtype is not None and any(
        p.grad is not None and p.grad.dtype is masters.dtype and masters.of(p) is not None for p in parameters)


def _clip_in_float(gradients, max_norm, norm_type, error_if_nonfinite, foreach):
    """As owners clip under CASTOR_PRECISION, where there are none or they cannot: norms and products are float, and the products are
    rounded once. The host waits for the norm, since most gradients are not written then."""
    alike, total = _foreach_utils._group_tensors_by_device_and_dtype([gradients], with_indices=True).values(), [None] * len(gradients)
    for (own,), places in alike:
        dtype = torch.float32 if own[0].dtype is masters.dtype else None
        norms = torch._foreach_norm(own, norm_type, dtype=dtype) if foreach is not False else [
            torch.linalg.vector_norm(t, norm_type, dtype=dtype) for t in own]
        for place, norm in zip(places, norms):
            total[place] = norm.to(gradients[0].device)
    total = torch.linalg.vector_norm(torch.stack(total), norm_type)
    if error_if_nonfinite:
        clip_grad._get_total_norm([total], norm_type, True)  # raises PyTorch's own error
    coefficient = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for t in gradients if coefficient.item() != 1.0 else ():
        t.copy_(t.float() * coefficient) if t.dtype is masters.dtype else t.mul_(coefficient)
    return total


def _clip(stock, parameters, max_norm, norm_type, error_if_nonfinite, foreach):
    """On this rank alone."""
    if isinstance(parameters, list) and _have_masters(parameters):
        made = [p.grad for p in parameters if p.grad is not None]
        return _clip_in_float(made, float(max_norm), float(norm_type), error_if_nonfinite, foreach)
    return stock(parameters, max_norm, norm_type, error_if_nonfinite, foreach)


def _tell_job(*operation):
    if _job is not None:
        _job.gradients_clipped(*operation)


def _clip_grad_norm(stock):
    @functools.wraps(stock)
    @torch.no_grad()
    def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
        listed = _as_list(parameters)
        if entries.serves(listed) and accumulation.at_boundary(listed):
            gradients = gradients_on_devices.Gradients(listed)
            operation = "norm", float(max_norm), float(norm_type), foreach
            _tell_job(*operation[:3])
            if gradients.by_owners(*operation):
                return gradients_on_devices.clip_grad_norm(gradients, float(max_norm), float(norm_type), error_if_nonfinite, foreach)
            with gradients.alike(*operation):
                return _clip(stock, listed, max_norm, norm_type, error_if_nonfinite, foreach)
        gradients = _Gradients(listed) if store.groups() and store.active() else None
        acts = accumulation.at_boundary(listed)
        if not acts:
            max_norm, error_if_nonfinite = float("inf"), False  # the norm of the gradients so far
        if gradients is not None:
            _tell_job("norm", float(max_norm), float(norm_type))
        if gradients is None or not gradients.by_owners("norm", float(max_norm), float(norm_type), foreach):
            if not acts and not _have_masters(listed):
                return clip_grad._get_total_norm([p.grad for p in listed if p.grad is not None], norm_type, False, foreach)
            # An empty generator must reach the stock function as a generator, of which it warns.
            return _clip(stock, listed if listed else parameters, max_norm, norm_type, error_if_nonfinite, foreach)
        norms = _norms(gradients, float(norm_type), foreach)
        norms = torch.tensor(norms, dtype=torch.float64).to(gradients.norm_dtype())
        total = torch.linalg.vector_norm(norms, float(norm_type))
        if error_if_nonfinite and tensors.not_finite(total):
            clip_grad._get_total_norm([total], norm_type, True)  # raises PyTorch's own error
        coefficient = torch.clamp(float(max_norm) / (total + 1e-6), max=1.0)
        clips = coefficient.item() != 1.0
        if clips:
            for own in gradients.mine():
                if own and (foreach is None or foreach):
                    torch._foreach_mul_(own, coefficient)  # a number would be rounded to 16 bits first
                else:
                    for t in own:
                        t.mul_(coefficient)
        gradients.done("clipping by norm", coefficient.item() if clips else None)
        return total

    return clip_grad_norm_


def _clip_grad_value(stock):
    @functools.wraps(stock)
    @torch.no_grad()
    def clip_grad_value_(parameters, clip_value, foreach=None):
        listed = _as_list(parameters)
        if not accumulation.at_boundary(listed):
            return None
        if entries.serves(listed):
            gradients = gradients_on_devices.Gradients(listed)
            _tell_job("value", float(clip_value))
            if gradients.by_owners("value", float(clip_value), foreach):
                return gradients_on_devices.clip_grad_value(gradients, float(clip_value))
            with gradients.alike("value", float(clip_value)):
                return stock(listed, clip_value, foreach)
        gradients = _Gradients(listed) if store.groups() and store.active() else None
        if gradients is not None:
            _tell_job("value", float(clip_value))
        if gradients is None or not gradients.by_owners("value", float(clip_value), foreach):
            return stock(listed, clip_value, foreach)
        gradients.begin()
        for own in gradients.mine():
            for t in own:
                t.clamp_(-float(clip_value), float(clip_value))
        gradients.done("clipping by value", float(clip_value))
        return None

    return clip_grad_value_


def _unscale(stock):
    @functools.wraps(stock)
    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        listed = [p for g in optimizer.param_groups for p in g["params"]]
        if not accumulation.at_boundary(listed):
            return {found_inf.device: found_inf}
        if entries.serves(listed):
            gradients = gradients_on_devices.Gradients(listed)
            fp16 = any(masters.gradient_dtype(p) is torch.float16 for p, _ in gradients.pairs)
            if not (fp16 and not allow_fp16) and gradients.by_owners("unscale", inv_scale.item()):
                gradients_on_devices.unscale(gradients, found_inf, inv_scale)
                return {found_inf.device: found_inf}
            with gradients.alike("unscale", inv_scale.item() if gradients.group else 0):
                return stock(self, optimizer, inv_scale, found_inf, allow_fp16)
        gradients = _Gradients(listed) if store.groups() and store.active() else None
        fp16 = gradients is not None and any(p.grad.dtype is torch.float16 for p, _ in gradients.pairs)
        if (
            gradients is None or fp16 and not allow_fp16
            or not gradients.by_owners("unscale", inv_scale.item(), found_inf.item())
        ):
            return stock(self, optimizer, inv_scale, found_inf, allow_fp16)
        with torch.no_grad():
            gradients.begin()
            for own in gradients.mine():
                if own:
                    torch._amp_foreach_non_finite_check_and_unscale_(own, found_inf, inv_scale)
            every = gradients.group.gather([found_inf.item()], "the check of the gradients for infinities")
            found = max(value for value, in every)
            found_inf.fill_(gradients.group.across.total([found], largest=True)[0] if gradients.group.single else found)
            gradients.done("unscaling the gradients", inv_scale.item())
        return {found_inf.device: found_inf}

    return _unscale_grads_


def _zero_grad(stock, parameters_of):
    """set_to_none=False: the core sets windows to zero, without writing their pages."""

    @functools.wraps(stock)
    def zero_grad(self, set_to_none=True):
        if entries.serves_any():
            parameters = list(parameters_of(self))
            gradients_on_devices.zero(parameters, set_to_none)
            with sums.unseen() if set_to_none else contextlib.nullcontext():
                return _zero(self, set_to_none)
        return _zero(self, set_to_none)

    def _zero(self, set_to_none):
        zeroes = not set_to_none and bool(store.groups())
        if not store.active() or not (zeroes or accumulation.active()):
            return stock(self, set_to_none)
        parameters = list(parameters_of(self))
        hidden = [(p, p.grad) for p in accumulation.not_zeroed(parameters)]
        for p, _ in hidden:
            p.grad = None
        pairs = [(p, store.entry_of(p)) for p in parameters] if zeroes else []
        pairs = [(p, e) for p, e in pairs if e is not None and e.shared and e.shows_window(p.grad)]
        core.windows_zero(core.pointers([e.window for _, e in pairs]), len(pairs))
        for p, _ in pairs:
            p.grad.requires_grad_(False)
            torch.autograd.graph.increment_version(p.grad)
            hidden.append((p, p.grad))
            p.grad = None
        try:
            return stock(self, set_to_none)
        finally:
            for p, grad in hidden:
                p.grad = grad

    return zero_grad


def install(single_job):
    """`single_job`: the ranks of a single-process script, None for other scripts."""
    global _job
    _job = single_job
    patching.replace("torch.nn.utils.clip_grad.clip_grad_norm_", _clip_grad_norm)
    patching.replace("torch.nn.utils.clip_grad.clip_grad_value_", _clip_grad_value)
    patching.replace("torch.amp.GradScaler._unscale_grads_", _unscale)
    patching.replace("torch.optim.Optimizer.zero_grad", functools.partial(_zero_grad, parameters_of=store.parameters_of))
    patching.replace("torch.nn.Module.zero_grad", functools.partial(_zero_grad, parameters_of=lambda self: self.parameters()))
