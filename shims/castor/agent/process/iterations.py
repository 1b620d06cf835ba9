"""Iterations over DataLoaders: where they begin, and where they give a batch."""
import functools

from torch.utils.data import dataloader

from . import stacks


def wrap(begin, following):
    """`begin(iterator, loader)` comes whenever an iteration over a DataLoader begins; `following(iterator, draw)` gives its next batch,
    which draw() does without it. Later wrappers are around earlier ones."""
    base = dataloader._BaseDataLoaderIter
    init, reset, next_ = base.__init__, base._reset, base.__next__

    @stacks.unseen
    @functools.wraps(init)
    def iterator_init(self, loader):
        init(self, loader)
        begin(self, loader)

    @functools.wraps(reset)
    def iterator_reset(self, loader, first_iter=False):
        reset(self, loader, first_iter)
        begin(self, loader)

    @functools.wraps(next_)
    def iterator_next(self):
        return following(self, functools.partial(next_, self))

    base.__init__, base._reset, base.__next__ = iterator_init, iterator_reset, iterator_next
