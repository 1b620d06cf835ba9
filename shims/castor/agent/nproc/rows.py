"""Rows of a batch in nested values: which tensors have them, this rank's rows of a whole tensor, and the whole made of all ranks' rows.

Gradients. Outside of the model each rank has the whole batch, and every rank's gradient is the whole one. Inside, a rank's gradient is N times
its rows' contribution, so that the mean over N ranks, which parameters get, is the whole one, whatever part of it was made inside or outside.
The functions below go from one to the other, and each one's backward is made of the others: gradients of gradients are right, too."""
import collections.abc
import copy
import dataclasses
import numbers
import time
import types
from ctypes import byref, c_uint64

import torch

from .. import core
from ..common import graph
from . import draws, exchange, randomness

_OPAQUE_NOT = (str, bytes, numbers.Number, type(None), type, torch.nn.Module, torch.dtype, torch.device, torch.Generator, types.FunctionType, types.MethodType)


class Apart(Exception):
    """Why a call cannot be computed by rows. `level`: of the line that says so."""

    def __init__(self, why, level=2):
        super().__init__(why)
        self.level = level


def mapped(value, change, path="", is_leaf=None):
    """`value` with each tensor, and each leaf that is no container, replaced by change(leaf, path). A container in which nothing changes stays
    the same object."""
    if is_leaf is not None and is_leaf(value):
        return change(value, path)
    if isinstance(value, collections.abc.MutableMapping):
        made = {key: mapped(item, change, f"{path}[{key!r}]", is_leaf) for key, item in value.items()}
        if all(made[key] is item for key, item in value.items()):
            return value
        value = copy.copy(value)
        for key, item in made.items():
            value[key] = item
        return value
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        made = [mapped(item, change, f"{path}[{number}]", is_leaf) for number, item in enumerate(value)]
        if all(one is other for one, other in zip(made, value)):
            return value
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        made = {f.name: mapped(getattr(value, f.name), change, f"{path}.{f.name}", is_leaf) for f in dataclasses.fields(value)}
        if all(getattr(value, name) is item for name, item in made.items()):
            return value
        value = copy.copy(value)
        for name, item in made.items():
            object.__setattr__(value, name, item)
        return value
    return change(value, path)


def leaves(value, is_leaf=None):
    """[(leaf, path)]"""
    found = []
    mapped(value, lambda leaf, path: found.append((leaf, path)) or leaf, "", is_leaf)
    return found


def needing_gradients(value):
    """The tensors in it that require gradients."""
    return [leaf for leaf, _ in leaves(value) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


def exchanged(value, some, others):
    """`value` with some of its tensors replaced by others, one each."""
    made = dict(zip(map(id, some), others))
    return mapped(value, lambda leaf, path: made.get(id(leaf), leaf))


def is_column(value):
    """Words and numbers in a list, which are a column of a batch."""
    return type(value) in (list, tuple) and bool(value) and all(isinstance(item, (str, bytes, int, float)) for item in value)


def is_plain(tensor):
    return tensor.layout is torch.strided and tensor.device.type in ("cpu", "cuda") and type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def resolved(tensor):
    """Its values as they lie in memory: of a conjugate or a negated view they do not."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def is_opaque(leaf):
    """Whether it is an object of the script's that may hold tensors which nobody sees."""
    return may_hold(leaf) and any(isinstance(item, torch.Tensor) for item in getattr(leaf, "__dict__", {}).values())


def may_hold(leaf):
    """Whether a result may hold what a rank has made of its rows: all but words, numbers, functions and the like."""
    return not isinstance(leaf, (*_OPAQUE_NOT, torch.Size)) and not callable(leaf)


def many_at_a_time():
    """Tensors may stand for many: inside of torch.func, or of vectorized gradients, which PyTorch makes by its older means."""
    if torch._C._functorch.maybe_current_level() is not None:
        return True
    torch._C._vmapmode_increment_nesting()
    return torch._C._vmapmode_decrement_nesting() > 0


def refuse_many():
    if many_at_a_time():
        raise core.GroupError("castor: the ranks cannot exchange the rows of many gradients at a time: leave vectorize=True, or is_grads_batched=True, out")


def local_batch_of(count, rank, world):
    """A rank's range of `count` samples, and its weight."""
    first, last = c_uint64(), c_uint64()
    weight = core.local_batch(count, rank, world, byref(first), byref(last))
    return first.value, last.value, weight


class Division:
    """A batch of `count` rows on the replicas of a model (layout.py). rank, world: this one's number, and how many there are; all ranks of a replica have
    the same rows."""

    def __init__(self, job, count):
        self.job, self.count, self.rank, self.world = job, count, job.layout.replica, job.layout.replicas
        self.bounds = [local_batch_of(count, rank, self.world)[:2] for rank in range(self.world)]
        self.first, self.last = self.bounds[self.rank]
        self.size = self.last - self.first
        self.largest = max(last - first for first, last in self.bounds)
        self.local_batch = randomness.LocalBatch(self.first, self.last, count)
        self.went_back = False  # a backward has gone through the call's results
        self.hooked = False  # the script wants to see, or change, gradients inside of the call
        # Of the losses that the call returns, by their paths.
        self.totals = {}  # the sum over the ranks
        self.measures = {}  # what a loss counts, where its graph does not show it (losses.added)
        self.sums = {}  # the sum over the parts in which this replica's rows were computed

    def part(self, number, count):
        """One of `count` parts of this replica's rows. at: its first row among them."""
        part = copy.copy(self)
        first, last, _ = local_batch_of(self.size, number, count)
        part.at, part.size = first, last - first
        part.first, part.last = self.first + first, self.first + last
        part.local_batch = randomness.LocalBatch(part.first, part.last, self.count)
        return part

    @property
    def even(self):
        return self.largest * self.world == self.count

    def rows(self, tensor, dimension=0, each=1):
        """This rank's rows of a whole tensor."""
        if tensor.requires_grad and torch.is_grad_enabled():
            return _Rows.apply(tensor, self, dimension, each)
        return self.rows_of(tensor, dimension, each)

    def whole(self, own, dimension=0, each=1):
        """The whole tensor of which each rank has rows. `each`: rows for one row of the batch."""
        if own.requires_grad and torch.is_grad_enabled():
            return _Whole.apply(own, self, dimension, each)
        return self.whole_of(own, dimension, each)

    def rows_of(self, tensor, dimension, each):
        return tensor.narrow(dimension, self.first * each, self.size * each)

    def whole_of(self, given, dimension, each):
        refuse_many()
        if self.world == 1:
            return given.detach()
        own = resolved(given.detach().movedim(dimension, 0))
        bytes_of_row = own[0].numel() * own.element_size() * each
        whole = own.new_empty(self.count * each, *own.shape[1:])
        if self.even and self.world == self.job.world:
            self._gathered(own.reshape(-1).view(torch.uint8), bytes_of_row * self.largest, whole.view(-1).view(torch.uint8).view(self.world, -1))
        else:
            every = self.job.layout.of_replicas(self._gathered(own.reshape(-1).view(torch.uint8), bytes_of_row * self.largest))
            torch.cat([own[:(last - first) * bytes_of_row] for own, (first, last) in zip(every, self.bounds)], out=whole.view(-1).view(torch.uint8))
        if dimension == 0 and given.is_contiguous():
            return whole
        like = draws.whole_like(given, dimension, self.count * each)  # not a view, which a script might not change
        return like.copy_(whole.movedim(0, dimension))

    def mean_of(self, tensor):
        """The mean of a tensor that each rank has, of all ranks."""
        refuse_many()
        own = resolved(tensor).reshape(-1)
        wide = torch.complex128 if own.is_complex() else torch.float64
        mean, length = torch.empty_like(own), exchange.GATHER_BYTES // own.element_size()
        for at in range(0, len(own), length):
            piece = own[at:at + length].view(torch.uint8)
            every = self._gathered(piece, len(piece)).reshape(-1).view(own.dtype).view(self.job.world, -1)
            mean[at:at + length] = every.to(wide).mean(0)
        return mean.view(tensor.shape)

    def _gathered(self, data, most, out=None):
        """The bytes of each rank, a row of `most` bytes each, of which a rank may have fewer."""
        began = time.monotonic_ns()
        if len(data) < most:
            data = torch.cat([data, data.new_zeros(most - len(data))])
        out = exchange.gathered(self.job, data, "the rows of a batch", out)
        core.event_rows(time.monotonic_ns() - began)
        return out


class Watched:
    """A call that is computed whole, and its graph."""

    def __init__(self, result):
        self.went_back = False
        for leaf, _ in leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None:
                leaf.grad_fn.register_prehook(self._goes_back)  # which lives as long as the graph

    def _goes_back(self, grads):
        self.went_back = True


class _Rows(torch.autograd.Function):
    """From outside to inside: this rank's rows."""

    @staticmethod
    def forward(ctx, whole, division, dimension, each):
        ctx.division, ctx.place = division, (dimension, each)
        return division.rows_of(whole, dimension, each)

    @staticmethod
    def backward(ctx, grad):
        return ctx.division.whole(grad / ctx.division.world, *ctx.place), None, None, None


class _Whole(torch.autograd.Function):
    """From inside to outside: the rows of all ranks. Where a later call used what was made of them without getting it as an argument, each rank has
    a gradient of its own."""

    @staticmethod
    def forward(ctx, own, division, dimension, each):
        ctx.division, ctx.place = division, (dimension, each)
        return division.whole_of(own, dimension, each)

    @staticmethod
    def backward(ctx, grad):
        division = ctx.division
        division.went_back = True
        if division.job.boundary.differ([grad]):
            grad = Mean.apply(grad, division)
        return division.rows(grad, *ctx.place) * division.world, None, None, None


class Same(torch.autograd.Function):
    """From outside to inside: what has no rows, as it is."""

    @staticmethod
    def forward(ctx, tensor, division):
        ctx.division = division
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, grad):
        return Mean.apply(grad, ctx.division), None


class Mean(torch.autograd.Function):
    """From inside to outside: a gradient, of which each rank has N times its rows' contribution. So has each rank of that gradient's own, where a
    model used what was made of it without getting it as an argument."""

    @staticmethod
    def forward(ctx, gradient, division):
        ctx.division = division
        return division.mean_of(gradient)

    @staticmethod
    def backward(ctx, grad):
        return Mean.apply(grad, ctx.division), None


def _finite(gradients, _):
    return tuple(g if g is None else torch.nan_to_num(g, 0.0, 0.0, 0.0) for g in gradients)


class Sum(torch.autograd.Function):
    """From inside to outside: a loss, of which each rank has its share."""

    @staticmethod
    def forward(ctx, loss, share, division, path):
        ctx.share, ctx.division = share, division
        own = share * loss.item() if share else 0.0
        every = division.job.layout.of_replicas(division.job.group.gather([own, division.sums.get(path, loss.item())], "a loss that the model returns"))
        division.totals[path] = sum(total for _, total in every)
        if not share and loss.grad_fn is not None:  # a mean over nothing: no number times that is one
            for node in graph.nodes([loss]):
                node.register_hook(_finite)
        return loss.new_full(loss.shape, sum(share for share, _ in every))

    @staticmethod
    def backward(ctx, grad):
        ctx.division.went_back = True
        return grad * (ctx.share * ctx.division.world), None, None, None
