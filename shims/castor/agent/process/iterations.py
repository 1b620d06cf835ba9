"""Iterations over DataLoaders: where they begin, and where they give a batch."""
import functools
import sys

from .. import patching
from . import stacks


def wrap(begin, following):
    """Calls `begin(iterator, loader)` whenever an iteration over a DataLoader begins. `following(iterator, draw)` returns its
    next batch; draw() returns the unwrapped iterator's. Later wrappers enclose earlier ones."""

    def wrap_init(init):
        @stacks.unseen
        @functools.wraps(init)
        def iterator_init(self, loader):
            init(self, loader)
            begin(self, loader)

        return iterator_init

    def wrap_reset(reset):
        @functools.wraps(reset)
        def iterator_reset(self, loader, first_iter=False):
            reset(self, loader, first_iter)
            begin(self, loader)

        return iterator_reset

    def wrap_next(next_):
        @functools.wraps(next_)
        def iterator_next(self):
            return following(self, functools.partial(next_, self))

        return iterator_next

    for name, wrap_function in (("__init__", wrap_init), ("_reset", wrap_reset), ("__next__", wrap_next)):
        patching.replace(f"torch.utils.data.dataloader._BaseDataLoaderIter.{name}", wrap_function)


def fetched_ahead(loader):
    """Whether Accelerate draws the loader's batches: it hands out a batch only after it has fetched the next one, or knows that
    there is none. Its GradientState names the loader that is iterated, which contains ours."""
    state, loaders = (sys.modules.get(f"accelerate.{name}") for name in ("state", "data_loader"))
    if state is None or loaders is None or not state.GradientState._shared_state:
        return False
    active = state.GradientState().active_dataloader
    ahead = issubclass(type(active), loaders.DataLoaderShard)  # it pretends to be a DataLoader
    return ahead and loader in (active, getattr(active, "base_dataloader", None))
