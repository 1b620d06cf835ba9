"""The gradients of each backward are summed by buckets, over the script's process group, while the backward runs; p.grad is a part of one, or
the owner alone has the sum (sums.py).

As DistributedDataParallel does: a gradient is divided by the number of ranks before it is added; what a rank did not use counts zero, and
p.grad of what no rank used stays as it was. The core divides parameters into buckets (interpose/gradients/buckets.h)."""
import collections
import itertools
import weakref

import torch
import torch.distributed as dist

from .. import core
from ..backward import gradients, reducer
from ..common import store, tensors
from ..device import adoption, homes
from ..precision import loss_scale, masters
from ..process import events
from . import alike, arrivals, entries, kept, shared, sums, wides

IN_FLIGHT = 3  # collectives of a backward, where owners alone keep the sums: so many buckets are there at a time

_numbers = itertools.count()  # synchronizers are made in the same order on all ranks
_sharded = weakref.WeakSet()  # synchronizers whose sums owners alone keep


class Part:
    """A parameter in a bucket."""

    __slots__ = "parameter", "entry", "place", "bucket", "synchronizer", "bytes", "range", "is_put", "in_bucket", "kept", "keep", "layout", "__weakref__"

    def __init__(self, p, entry, place, bucket, synchronizer):
        self.parameter, self.entry, self.place, self.bucket = weakref.ref(p), entry, place, bucket
        self.synchronizer, self.bytes = weakref.ref(synchronizer), p.numel() * masters.gradient_dtype(p).itemsize
        self.range = 0  # its number among those that the owner keeps
        self.is_put = self.in_bucket = False  # in this backward: its gradient was put into the bucket, and p.grad is there
        self.layout = tuple(p.shape), p.stride()  # of the gradient in the bucket
        self.keep = None  # sums.Keep, if owners keep sums
        self.kept = None  # the values of p.grad, if no gradient came and it lies in the bucket

    def fits(self, p):
        """The parameter is as large, and of the type, as it was."""
        return masters.gradient_dtype(p) is self.bucket.dtype and p.numel() * self.bucket.dtype.itemsize == self.bytes


class Bucket:
    """single: the owner alone gets the sum."""

    def __init__(self, number):
        self.number, self.owner, self.single = number, 0, False
        self.parts, self.numel, self.dtype = [], 0, None
        self.memory = None  # in a backward
        self.missing, self.streams = 0, []

    def add(self, part, p):
        self.parts.append(part)
        self.dtype, self.owner = masters.gradient_dtype(p), part.place.owner
        self.numel = max(self.numel, part.place.offset // self.dtype.itemsize + p.numel())

    def begin(self):
        self.memory, self.missing, self.streams = None, len(self.parts), []
        for part in self.parts:
            part.is_put = part.in_bucket = False

    def open(self, device, keeps):
        """The memory for this backward: that of p.grad, if it is still all parameters' p.grad, else new one. `keeps`: this rank gets the sum."""
        if self.memory is None and keeps:
            self.memory = self._in_place()
        if self.memory is None:
            with homes.born(homes.GRADIENT, device.index):
                self.memory = torch.empty(self.numel, dtype=self.dtype, device=device)
        return self.memory

    def _in_place(self):
        first = self.parts[0].parameter()
        grad = None if first is None else sums.grad_of(first)
        if grad is None or grad.dtype is not self.dtype:
            return None
        storage = grad.untyped_storage()
        size = self.numel * self.dtype.itemsize
        if storage.nbytes() < size or any(not self._lies_in(part, storage.data_ptr()) for part in self.parts):
            return None
        return torch.empty(0, dtype=self.dtype, device=grad.device).set_(storage, 0, (self.numel,))

    @staticmethod
    def _lies_in(part, address):
        p = part.parameter()
        grad = None if p is None else sums.grad_of(p)
        found = None if grad is None else (grad.data_ptr(), grad.dtype, grad.shape, grad.stride())
        return found == (address + part.place.offset, part.bucket.dtype, p.shape, p.stride())


class Synchronizer:
    """Sums the gradients of a list of parameters at the end of each backward for which `expecting` is set. It lives as long as its owner, as
    DistributedDataParallel's reducer: its hooks do not hold it."""

    late = False  # sums are made at the end of the backward pass of what the last forward makes

    def __init__(self, group, parameters):
        self.group, self.number = group, next(_numbers)
        self.device = parameters[0].device
        self.delayed = self.expecting = self.begun = False
        self.broken = None  # why no backward can be synchronized any more
        self.ready = set()  # the parts whose gradients came since expect()
        self.waiting = None  # the part whose gradient came last: the script's own hooks, which run after ours, still look at p.grad
        self.next = 0  # of the buckets, the first that is not being summed
        self.works = collections.deque()  # (of a collective, its bucket; None: it has none)
        self.all_used = self.all_used_flags = None  # on the device, what is mostly said
        self.scale = 1.0 / group.world
        self._adopt(parameters)
        self.hooks = []
        weakref.finalize(self, _end, self.hooks, self.buckets).atexit = False
        for part in self.parts:
            self._hook(part)

    def _adopt(self, parameters):
        fresh = adoption.adopt_masters(parameters)
        loss_scale.sum_over(self.group, parameters)
        found, places, count = entries.adopt(self.group, parameters)
        self.buckets = [Bucket(number) for number in range(count)]
        self.parts = []
        for p, entry, place in zip(parameters, found, places):
            part = Part(p, entry, place, self.buckets[place.bucket], self)
            part.bucket.add(part, p)
            self.parts.append(part)
        self.touched = set()  # numbers of buckets of whose sums something has looked at one here, since the last backward
        self.keep = self.told = None
        if core.plugin_shards():
            kept.peers_of(self.group)  # on all ranks together
            kept.settle()
            alike.install()
            wides.share(self.group, fresh)
            for p, entry in zip(parameters, found):
                alike.see(p, entry)
        if core.plugin_shards() > 1:
            self._shard()
        shared.share(self.group, [(p, entry) for p, entry in zip(parameters, found) if entry.group is self.group])

    def _shard(self):
        """Owners alone keep the sums."""
        sums.install()
        self.group.sharded += 1
        self.keep = sums.Keep(self, 1 << 31 | self.group.sharded)
        for bucket in self.buckets:  # who owns a parameter in another process group has another number there
            bucket.single = all(part.entry.group is self.group for part in bucket.parts)
        _sharded.add(self)

    def _number_ranges(self):
        """Of the parts that each owner keeps."""
        counts = collections.Counter()
        for part in self.parts:
            if part.bucket.single:
                part.range = counts[part.bucket.owner]
                counts[part.bucket.owner] += 1

    def _hook(self, part):
        this = weakref.ref(self)

        def ready(p):
            synchronizer = this()
            if synchronizer is not None:
                synchronizer._ready(part, p)

        self.hooks.append(part.parameter().register_post_accumulate_grad_hook(ready))

    def remove_hooks(self):
        _unhook(self.hooks)

    def expect(self):
        """The next gradients are to be summed."""
        self.expecting = True
        self.ready.clear()

    def still_expects(self):
        """Whether gradients of further backward passes belong to those that were summed just now."""
        return False

    refuse_second = staticmethod(gradients.Synchronizer.refuse_second)

    def refuse_broken(self):
        raise core.GroupError(f"castor: {self.broken}")

    # ---- while a backward runs

    def _ready(self, part, p):
        if not store.active():
            return
        part.entry.synced = False
        if sums.is_elsewhere(p):
            sums.bring(p)
        if not self.expecting:
            return
        if not self.begun:
            self._begin()
        if self.delayed:
            return
        if self.late:
            self._lay(part, p)
            return
        if part in self.ready:
            self.refuse_second()
        self.ready.add(part)
        self._reap()
        self.waiting = part
        if part.entry.summing is None:
            part.entry.summing = self

    @torch.no_grad()
    def _lay(self, part, p):
        """Its gradient lies in its bucket, where more may be added to it: so it is there once until the sums are made."""
        grad = sums.grad_of(p)
        if grad is None or grad.layout is not torch.strided or not part.fits(p) or part.entry.summing not in (None, self):
            return
        view = entries.view_of(part.bucket.open(self.device, self._gets(part.bucket)), part.place, p)
        if not tensors.is_at(grad, view.data_ptr(), view):
            view.copy_(grad)
            del grad
            self._replace(part, p, view)

    def _begin(self):
        if self.broken:
            self.refuse_broken()
        self._open()
        # With stages the ranks' passes reach models in other orders.
        events.at_end(self._end, self._raised, self.number if self.late else 0)

    def _open(self):
        if self.keep is not None:
            self.bring()
            self._sum_everywhere()
            self._number_ranges()
            self.keep.begin()
        self.begun, self.next = True, 0
        for bucket in self.buckets:
            bucket.begin()

    def bring(self):
        """What others have, and is added to."""
        for part in self.parts:
            p = part.parameter()
            if p is not None and sums.is_elsewhere(p):
                sums.bring(p)

    def _reap(self):
        part, self.waiting = self.waiting, None
        if part is not None:
            self._put(part, used=True)
            self._sum_complete()

    @torch.no_grad()
    def _put(self, part, used):
        """Puts a gradient into its bucket, scaled. From there on p.grad is its place there, unless the script holds the tensor that it was."""
        p, bucket = part.parameter(), part.bucket
        memory, part.is_put = bucket.open(self.device, self._gets(bucket)), True
        bucket.missing -= 1
        if p is None or part.entry.summing not in (None, self):
            memory.narrow(0, part.place.offset // memory.element_size(), 0 if p is None else p.numel()).zero_()
            return
        if not part.fits(p):
            raise core.Error(f"castor: a parameter has become {p.dtype} of shape {tuple(p.shape)}, and its gradients are summed as they were before: wrap "
                             "the model again, or build its optimizer again, after such a change")
        part.entry.summing, part.layout = self, (tuple(p.shape), p.stride())
        view, grad = entries.view_of(memory, part.place, p), sums.grad_of(p)
        if grad is None:
            view.zero_()
        elif grad.layout is not torch.strided:
            raise core.Error("castor: a gradient is sparse: make it dense (Embedding(sparse=False)), or run this script on one rank")
        elif tensors.is_at(grad, view.data_ptr(), view):
            part.kept = None if used else grad.clone()
            part.in_bucket = used
            grad.mul_(self.scale)
        else:
            torch.mul(grad, self.scale, out=view)
            del grad
            part.in_bucket = used and self._replace(part, p, view)
        stream = torch.cuda.current_stream(self.device)
        if stream not in bucket.streams:
            bucket.streams.append(stream)

    @staticmethod
    def _replace(part, p, view):
        """p.grad becomes the view, and its own memory is freed, unless something else can reach that, or it is the tensor that the script saw
        before this backward. Returns whether it did."""
        grad = sums.grad_of(p)
        if tensors.storage_users(grad) > 1 or not grad.untyped_storage().resizable() or part.entry.was_shown(grad):
            return False
        held = weakref.ref(grad)
        with sums.unseen():
            p.grad = grad = None
            p.grad = view if held() is None else held()
        return held() is None

    def _sum_complete(self):
        """Buckets that are complete, in their order: it is the same on all ranks."""
        while self.next < len(self.buckets) and not self.buckets[self.next].missing:
            bucket = self.buckets[self.next]
            current = torch.cuda.current_stream(self.device)
            for stream in bucket.streams:
                if stream != current:
                    current.wait_stream(stream)
            self._sum(bucket)
            self.next += 1

    def _sum(self, bucket):
        memory, group = bucket.memory, self.group.process_group
        if bucket.single:
            work = dist.reduce(memory, group_dst=bucket.owner, group=group, async_op=True)
        else:
            work = dist.all_reduce(memory, group=group, async_op=True)
        self.works.append((work, bucket))
        if self.keep is not None and len(self.works) > IN_FLIGHT:
            self._wait_for_oldest()

    def _gets(self, bucket):
        """Whether this rank gets the bucket's sum."""
        return not bucket.single or bucket.owner == self.group.rank

    def _wait_for_oldest(self):
        """In the order of the stream. What another rank keeps is freed here."""
        work, bucket = self.works.popleft()
        work.wait()
        if self.keep is not None:
            self.keep.release()
        if bucket is None or self._gets(bucket):
            return
        for part in bucket.parts:
            if part.in_bucket and part.entry.summing is self and part.parameter() is not None:
                sums.leave(part)
        bucket.memory = None

    # ---- its end

    def sum_accumulated(self):
        """Sums what backward passes without synchronization have left in p.grad. On every rank together."""
        if self.broken:
            self.refuse_broken()
        self._open()
        self._end()

    def _end(self):
        try:
            self._reap()
            used = [self._is_used(part) for part in self.parts]
            self._put_rest(dict(zip(self.parts, used)))
            by_any = self._used_by_any(used)
            while self.works:
                self._wait_for_oldest()
            with torch.no_grad(), sums.unseen():
                everywhere = [here or anywhere for here, anywhere in zip(used, by_any())]
                changed = [part for part, is_used in zip(self.parts, everywhere) if self._show(part, is_used)]
                if loss_scale.active():
                    self._check(everywhere)
            self.begun = False
            if self.keep is not None:
                self.keep.show([part for part in self.parts if part.bucket.single and part.bucket.owner == self.group.rank])
                for part in changed:
                    self._renew(part)
            self.expecting = self.expecting and self.still_expects()
        except BaseException as error:
            self._raised(error)
            raise
        finally:
            for bucket in self.buckets:
                bucket.memory = None

    def _put_rest(self, used):
        """One bucket after another, since of those whose sums others get only some are there at a time."""
        for bucket in self.buckets:
            for part in bucket.parts:
                if not part.is_put:
                    self._put(part, used[part])
            self._sum_complete()

    def _is_used(self, part):
        """Whether this rank made a gradient of it since the last sum."""
        return not part.entry.synced

    def _check(self, used):
        """Whether the sums are finite, on all ranks alike (CASTOR_PRECISION=fp16)."""
        some = [p for p in (part.parameter() for part, is_used in zip(self.parts, used) if is_used) if p is not None]
        here = [grad for grad in map(sums.grad_of, some) if grad is not None and grad.numel()]
        overflowed = loss_scale.have_overflowed(here) if here else torch.zeros((), dtype=torch.bool, device=self.device)
        overflowed = overflowed.to(torch.uint8)
        dist.all_reduce(overflowed, dist.ReduceOp.MAX, group=self.group.process_group)
        loss_scale.found(some, bool(overflowed), self.group.rank == 0)

    def _used_by_any(self, used):
        """Says to all ranks which parameters this one has used, and which sums it has looked at. Returns a function that tells which parameters
        some rank has used; it waits for the device only where this rank has not used all. Numbers of which the least counts, and 0 says what is the rule: it is
        what a device has in a rehearsal without numbers."""
        flags = [*(int(not each) for each in used), *(-int(bucket.number in self.touched) for bucket in self.buckets if self.keep is not None)]
        self.touched.clear()
        if flags != self.all_used_flags or self.all_used is None:
            said = torch.tensor(flags, dtype=torch.int8).to(self.device)
            if not any(flags):
                self.all_used, self.all_used_flags = said.clone(), flags
        else:
            said = self.all_used.clone()
        self.works.append((dist.all_reduce(said, dist.ReduceOp.MIN, group=self.group.process_group, async_op=True), None))
        self.told = said
        return lambda: used if all(used) else [not unused for unused in said.tolist()]

    def _sum_everywhere(self):
        """From here on all ranks get the sums of buckets that some rank has looked at."""
        told, self.told = self.told, None
        if told is None or not any(bucket.single for bucket in self.buckets):
            return
        for bucket, touched in zip(self.buckets, told[len(self.parts):].tolist()):
            bucket.single = bucket.single and not touched

    def _show(self, part, used):
        """p.grad becomes the sum. Returns whether its values are still to be read from the owner."""
        p, entry = part.parameter(), part.entry
        before, part.kept = part.kept, None
        if entry.summing is not self:
            return False
        entry.summing = None
        if p is None:
            return False
        if not self._gets(part.bucket):
            return self._leave(part, p, used)
        view, grad = entries.view_of(part.bucket.memory, part.place, p), sums.grad_of(p)
        in_place = grad is not None and tensors.is_at(grad, view.data_ptr(), view)
        if not used:
            if in_place and before is not None:
                view.copy_(before)
        elif grad is None:
            p.grad = view
        elif not in_place:
            grad.copy_(view)
        entry.show(p.grad, part)
        return False

    def _leave(self, part, p, used):
        """Another rank has the sum."""
        entry = part.entry
        if sums.is_elsewhere(p):
            entry.show(None, part)
        elif used and (part.in_bucket or sums.grad_of(p) is None):
            sums.leave(part)
            entry.show(None, part)
        elif used:  # the script holds the tensor
            return True
        else:
            entry.show(sums.grad_of(p), part)
        return False

    @torch.no_grad()
    def _renew(self, part):
        p = part.parameter()
        grad = sums.grad_of(p)
        grad.copy_(sums.read(part))
        self.touched.add(part.bucket.number)
        part.entry.show(grad, part)

    def _raised(self, error):
        """A backward raised after some gradients were handed over: other ranks wait for the rest."""
        if not self.begun:
            return
        self.broken = self.broken or gradients.why_broken(error)
        self.begun = self.expecting = False
        self.waiting = None
        for part in self.parts:
            if part.entry.summing is self:
                part.entry.summing = None


def _end(hooks, buckets):
    _unhook(hooks)
    for bucket in buckets:  # what its parts keep is freed with their parameters
        bucket.parts.clear()


def _unhook(hooks):
    for hook in hooks:
        hook.remove()


class Reducer(reducer.StandsIn, Synchronizer):
    def __init__(self, group, parameters, find_unused):
        super().__init__(group, parameters)
        self.find_unused = find_unused


def _why_not(parameters, expect_sparse):
    if any(expect_sparse):
        return "a parameter has sparse gradients"
    return entries.why_unsupported(parameters)


def _control_of(process_group, parameters):
    return entries.group_of(process_group, parameters[0].device).control


def _have_alike(process_group, parameters):
    group = entries.group_of(process_group, parameters[0].device)
    return shared.arrived_alike(group, parameters) if shared.serves(group) else [False] * len(parameters)


def _are_alike(process_group, parameters):
    """Where each rank steps everything they may differ."""
    group = entries.group_of(process_group, parameters[0].device)
    return not core.plugin_shards() or alike.have_all(group, parameters)


def _make(process_group, parameters, find_unused):
    return Reducer(entries.group_of(process_group, parameters[0].device), parameters, find_unused)


class Observer(events.Observer):
    def backward_begun(self, outputs, create_graph):
        for synchronizer in list(_sharded):
            synchronizer.keep.preserve_uncleared()


def install():
    reducer.on_devices = reducer.Devices(_why_not, _control_of, _make, _have_alike, _are_alike)
    arrivals.install()
    reducer.at_release.append(entries.release)
    adoption.before_emptying.append(kept.settle)
    events.observe(Observer())
