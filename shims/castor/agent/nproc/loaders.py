"""DataLoaders of single-process scripts: a batch drawn to train on (gradients enabled, the model not in evaluation
mode) is split over the ranks.

All ranks draw the same indices. Each loads its part, or the whole batch if loading draws random numbers (streams.py).
Iterable datasets give each rank the same samples, of which it collates its part. Data that the loader does not batch is
loaded whole and cut."""
import collections
import functools
import time
import weakref
import zlib

import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data import dataloader

from .. import core, patching
from ..common import store
from ..process import iterations
from . import randomness, streams
from .rows import local_batch_of


LOOKED_AT = 50  # batches that are trained on
LARGE_SHARE, LARGE_SECONDS = 0.15, 0.002  # of the time; for a batch


class PartOfSamples:
    """Collates an iterable dataset's samples: returns their number, then this rank's part of them. Workers have it too. For
    the first `audits` batches it also returns the samples."""

    whole = False  # in a fork that audits

    def __init__(self, collate, rank, world, audits):
        self.collation, self.rank, self.world, self.audits = streams.Collation(collate), rank, world, audits

    def __call__(self, samples):
        if self.whole:
            return [len(samples), self.collation.collate(samples), None]
        first, last, _ = local_batch_of(len(samples), self.rank, self.world)
        self.audits -= 1
        return [len(samples), *self.collation(samples, first, last, self.audits >= 0)]


class _Loading:
    """How long the script waits for its loaders. Every rank loads whole batches, unless loaders split them."""

    def __init__(self, job):
        self.job, self.batches, self.waited, self.began = job, 0, 0.0, time.monotonic()

    def drawn(self, seconds):
        self.batches += 1
        self.waited += seconds
        if self.batches != LOOKED_AT or self.job.on_device:
            return
        share = self.waited / (time.monotonic() - self.began)
        if share > LARGE_SHARE and self.waited > LOOKED_AT * LARGE_SECONDS:
            self.job.say(f"{100 * share:.0f}% of the time went into waiting for a DataLoader. Every rank loads whole batches: CASTOR_BATCH=loader shares the loading "
                         "out, where the script keeps nothing of a batch (docs/single-process.md)")


class _Split:
    """How the ranks split the batches of one iteration.

    An iteration that begins in evaluation mode hands out whole batches. Trainers begin an epoch so, after an evaluation, and
    call model.train() when they have the first batches. Once every batch handed out has had its backward(), local batches follow. The
    batches that the script holds at a time are all whole or all local, since each kind has random numbers of its own."""

    def __init__(self, job, iterator, loader):
        self.job, self.iterator, self.loader = job, weakref.ref(iterator), weakref.ref(loader)
        self.audits = job.audit.first if job.rank == 0 else 0  # how many of the first batches are wanted whole, too
        self.in_whole = False  # the dataset draws random numbers, so that its batches cannot be made a second time
        self.drawn = collections.deque()  # batches not yet delivered: (arguments of Job.batch_delivered, indices, is it divided)
        self.drawn_ahead = False  # a batch is drawn while the script trains on an earlier one (audit.py)
        self.ahead = iterations.fetched_ahead(loader)  # the loader fetches the next batch before it hands out one (Accelerate)
        self.fetched = None  # the arguments of Job.batch_delivered for that next batch
        self.divided = not job.evaluating  # local batches are handed out, and no whole ones
        self.backwards = job.backwards
        self.handed = -1 if self.ahead else 0  # whole batches handed out so far
        self.left = None  # whole batches that are still handed out before local ones

    def indices(self, sampler_iter):
        for batch in sampler_iter:
            batch = list(batch)
            first, last, weight = local_batch_of(len(batch), self.job.rank, self.job.world)
            digest = float(zlib.crc32(repr(batch).encode()))
            self.drawn.append(((weight, digest, len(batch)), batch, self.divided))
            if not self.divided:
                yield batch
                continue
            self.audits -= 1
            yield streams.Indices(batch, first, last, self.audits >= 0)

    def look_for_training(self):
        """Decides whether the batch that is handed out next is divided."""
        job = self.job
        if self.divided:
            return
        if self.left is None and 0 < self.handed <= job.backwards - self.backwards and not job.evaluating:
            # With `ahead` the script gets a whole batch now, and as many batches as were handed out may belong together.
            self.left = self.handed - 1 if self.ahead else 0
        self.handed += 1
        self.divided = self.left == 0
        self.drawn_ahead = self.ahead and self.divided  # the script still has a whole batch
        if self.left:
            self.left -= 1

    def hand_out(self, fetched):
        """`fetched`: (weight, digest, number of samples) of the batch that the script gets now; weight None: it is whole."""
        if self.ahead:
            fetched, self.fetched = self.fetched or fetched, fetched
        if fetched is None:
            return
        job, (weight, _, count) = self.job, fetched
        job.loader = self.loader
        if weight is None:
            job.source = lambda: None
            if self.loader() in job.trained:
                randomness.begin_plain(self.iterator)
            else:
                randomness.begin_whole(self.iterator)
            return
        job.split_seen, job.source = True, self.iterator
        job.batch_delivered(*fetched)
        first, last, _ = local_batch_of(count, job.rank, job.world)
        randomness.begin(self.iterator, first, last, count)

    def hand_out_whole(self, data):
        self.hand_out((None, 0.0, 0))
        return data

    def deliver(self, iterator, data):
        """Returns the batch that the script gets."""
        kind, audit = iterator._castor_kind, self.job.audit
        self.look_for_training()
        if kind == BY_INDEX:
            fetched, batch, divided = self.drawn.popleft()
            if not divided:
                return self.deliver_of_whole(data, fetched)
            self.hand_out(fetched)
            self.in_whole, data, whole = data
            if self.in_whole:
                return audit.batch_handed_out(self, data, whole and functools.partial(whole.batch, iterator._collate_fn))
            return audit.batch_handed_out(self, data, lambda: self.whole_batch(iterator, batch))
        if kind == BY_SAMPLES:
            count, data, whole = data
            self.hand_out((local_batch_of(count, self.job.rank, self.job.world)[2], float(count), count))
            return audit.batch_handed_out(self, data, whole and functools.partial(whole.batch, iterator._collate_fn.collation.collate))
        return audit.batch_handed_out(self, self._cut(data), lambda: data) if self.divided else self.hand_out_whole(data)

    def deliver_of_whole(self, data, fetched):
        """Delivers a batch that was drawn while whole batches were handed out."""
        local, found = data, False
        if self.divided:
            first, last, _ = local_batch_of(fetched[2], self.job.rank, self.job.world)
            local, found = streams.cut(data, functools.partial(streams.is_column, count=fetched[2]), first, last)
        if not found:
            return self.hand_out_whole(data)
        self.hand_out(fetched)
        return self.job.audit.batch_handed_out(self, local, lambda: data)

    @staticmethod
    def whole_batch(iterator, batch):
        """In a fork that audits: loads these samples here, since the workers are the parent's."""
        fetcher = dataloader._DatasetKind.create_fetcher(
            iterator._dataset_kind, iterator._dataset, iterator._auto_collation, iterator._collate_fn, iterator._drop_last)
        if iterator._num_workers:
            with streams.restored():
                return fetcher.fetch(batch)
        return fetcher.fetch(batch)

    def following_in_fork(self, iterator):
        """The next whole batch of an iteration that began before the fork."""
        if iterator._castor_kind == BY_INDEX:
            if not self.drawn:
                next(iterator._sampler_iter)
            if self.in_whole and iterator._num_workers:
                self.job.audit.give_up_in_fork()
            return self.whole_batch(iterator, self.drawn.popleft()[1])
        if iterator._num_workers:
            self.job.audit.give_up_in_fork()
        data = iterator._next_data()
        return data[1] if iterator._castor_kind == BY_SAMPLES else data

    def _cut(self, data):
        rows = streams.rows_of
        sizes = [rows(leaf) for leaf in tree_flatten(data)[0] if rows(leaf) is not None]
        if not sizes:
            self.job.say("a DataLoader that makes no batches itself gives some without a tensor to cut: every rank computes "
                         "the whole of them", 1)
            self.hand_out((1.0 / self.job.world, 0.0, self.job.world))
            randomness.begin_whole(self.iterator)
            return data
        if len({*sizes}) > 1:
            self.job.say("a DataLoader that makes no batches itself gives tensors of different lengths: what is as long as the "
                         "first of them is cut. Let the loader batch the samples where that is not what a batch has", 1)
        first, last, weight = local_batch_of(sizes[0], self.job.rank, self.job.world)
        self.hand_out((weight, float(sizes[0]), sizes[0]))
        return streams.cut(data, functools.partial(streams.is_column, count=sizes[0]), first, last)[0]


def _may_train(job):
    return torch.is_grad_enabled() and store.active() and not job.distributed and torch.utils.data.get_worker_info() is None


def _trains(job):
    return _may_train(job) and not job.evaluating


def _by_loaders(job):
    """Whether the ranks split what loaders give."""
    return job.mode == "loader"


def _splits(job):
    return _by_loaders(job) and _trains(job)


def _rows_of(iterator, data):
    """Rows of a whole batch; 0: not known."""
    if _kind_of(iterator) == WHOLE:
        return 0
    return next((streams.rows_of(leaf) for leaf in tree_flatten(data)[0] if streams.rows_of(leaf) is not None), 0)


# How a loader's batches are split: by their indices, by the samples that are collated, or the whole batches.
BY_INDEX, BY_SAMPLES, WHOLE = "indices", "samples", "whole"


def _kind_of(loader):
    if not loader._auto_collation:
        return WHOLE
    return BY_INDEX if loader._dataset_kind == dataloader._DatasetKind.Map else BY_SAMPLES


def _restart_workers(loader):
    """Persistent workers collate as at their start, local or whole batches. For the other kind they are started anew. That draws
    a random number, so the generator's state is restored."""
    loader._iterator = None
    generator = torch.default_generator if loader.generator is None else loader.generator
    state = generator.get_state()
    loader._iterator = loader._get_iterator()
    generator.set_state(state)


_diverged = []  # generators that draw the rank's own numbers


def _diverge(job, loader):
    """CASTOR_BATCH=scale: this rank gets numbers of its own, also from a generator that the script has seeded for its loader."""
    state = float(zlib.crc32(torch.random.get_rng_state().numpy().tobytes()))
    states = [state for state, in job.group.gather([state], "the random states")]
    if states[0] in states[1:]:  # at first, and if the script has set a seed since
        job.diverge()
    for generator in (loader.generator, getattr(loader.sampler, "generator", None)):
        if generator is not None and not any(generator is known for known in _diverged):
            _diverged.append(generator)
            if job.rank:
                generator.manual_seed(job.seed_of_rank(generator.initial_seed()))
    drawn = not isinstance(loader.sampler, torch.utils.data.SequentialSampler)
    if loader._dataset_kind == dataloader._DatasetKind.Iterable or not drawn:
        job.say("CASTOR_BATCH=scale, but a DataLoader draws nothing at random: every rank computes the same batches. Shuffle "
                "them, or leave CASTOR_BATCH out", 1)
    else:
        job.say(f"CASTOR_BATCH=scale: each of the {job.world} ranks draws its own batches from the DataLoader, so a step sees "
                f"{job.world} times as many samples")


def install(job):
    loading = _Loading(job)
    streams.install()

    def begin(iterator, loader):
        iterator._castor_split, iterator._castor_in_fork = None, job.audit.in_fork
        iterator._castor_kind = _kind_of(iterator)
        if not _splits(job) and not may_split_later(iterator, loader):
            return
        iterator._castor_split = _Split(job, iterator, loader)
        if iterator._castor_kind == BY_INDEX:
            iterator._sampler_iter = iterator._castor_split.indices(iterator._sampler_iter)
        elif iterator._castor_kind == BY_SAMPLES and not isinstance(iterator._collate_fn, PartOfSamples):
            audits = job.audit.first if job.rank == 0 else 0
            iterator._collate_fn = PartOfSamples(iterator._collate_fn, job.rank, job.world, audits)

    def may_split_later(iterator, loader):
        """Whether it begins in evaluation mode. Not with an iterable dataset: its workers collate as at their start."""
        return (_may_train(job) and _by_loaders(job) and not job.audit.in_fork and iterator._castor_kind != BY_SAMPLES
                and getattr(loader, "in_order", True))

    def following(iterator, draw):
        split = getattr(iterator, "_castor_split", None)
        if job.audit.in_fork and not iterator._castor_in_fork:
            leave_after_backward()
            if split is not None:
                return split.following_in_fork(iterator)
            if iterator._num_workers:
                job.audit.give_up_in_fork()
        elif job.audit.in_fork:
            leave_after_backward()
        began = time.monotonic()
        try:
            with randomness.plain():
                data = draw()
        except StopIteration:
            if _by_loaders(job):  # a thread may draw ahead of the step that is compared
                job.audit.stop()
            if split is not None and split.ahead:
                split.hand_out(None)
            else:
                if not randomness.end(iterator):
                    job.source = lambda: None
            raise
        if split is None:
            if job.boundary.divides and _trains(job):
                loading.drawn(time.monotonic() - began)
            job.source = lambda: None
            job.boundary.deliveries += 1
            job.boundary.rows = _rows_of(iterator, data)
            randomness.begin_whole(weakref.ref(iterator))
            return data
        data = split.deliver(iterator, data)
        randomness.look_at(data)
        return data

    def leave_after_backward():
        """In a fork that audits: the next batch is another one to train on."""
        if torch.is_grad_enabled() and not job.evaluating and torch.utils.data.get_worker_info() is None:
            job.audit.next_batch_in_fork()

    def wrap(iterate):
        @functools.wraps(iterate)
        def loader_iter(self):
            make_ready(self)
            return iterate(self)

        return loader_iter

    def make_ready(loader):
        if job.audit.in_fork:
            leave_after_backward()
            loader._iterator = None  # persistent workers are the parent's
            return
        if _splits(job):
            core.activity_set(job.group.handle, core.ACTIVITY_DATA)
            try:
                streams.share(job)
            finally:
                core.activity_set(job.group.handle, core.ACTIVITY_SCRIPT)
            if not getattr(loader, "in_order", True):
                raise core.Error("castor: a DataLoader with in_order=False cannot be split: use in_order=True, or "
                                 "CASTOR_BATCH=scale")
        elif job.mode == "scale" and _trains(job):
            _diverge(job, loader)
        if loader._iterator is not None and _kind_of(loader) == BY_SAMPLES:  # of persistent workers
            if isinstance(loader._iterator._collate_fn, PartOfSamples) != _splits(job):
                _restart_workers(loader)

    iterations.wrap(begin, following)
    patching.replace("torch.utils.data.dataloader.DataLoader.__iter__", wrap)
