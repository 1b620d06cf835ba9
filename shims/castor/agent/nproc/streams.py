"""A process's global generators: PyTorch's of the host and of the device, Python's and NumPy's. They have the same state on all ranks.

If a dataset or a collation draws random numbers, each rank makes the samples of the whole batch and keeps its part. Only so does
each sample get the numbers that it has in one process. A dataset that draws nothing makes the rank's part alone. The first batch
shows which kind it is. A collation that pads to the longest sample also makes the whole batch: the padded length decides how
many numbers a dropout draws, and over how many positions a mean is taken."""
import collections.abc
import contextlib
import copy
import functools
import random
import struct
import sys
import zlib

import torch
from torch.utils._pytree import tree_map

from .. import patching
from . import randomness

_OBJECTS = 500  # of a dataset that are searched for generators of its own


# ---- states


def _numpy():
    return sys.modules.get("numpy.random")


def states():
    numpy = _numpy()
    of_device = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return torch.random.get_rng_state(), random.getstate(), None if numpy is None else numpy.get_state(), of_device


def restore(saved):
    torch.random.set_rng_state(saved[0])
    random.setstate(saved[1])
    if saved[2] is not None:
        _numpy().set_state(saved[2])
    if saved[3] is not None:
        torch.cuda.set_rng_state(saved[3])


@contextlib.contextmanager
def restored():
    before = states()
    try:
        yield
    finally:
        restore(before)


def _packed(saved):
    """The bytes of each of the states."""
    _, words, gauss = saved[1]
    packed = [_bytes_of(saved[0]), struct.pack(f"<{len(words)}Idd", *words, gauss is not None, gauss or 0.0), b"", _bytes_of(saved[3])]
    if saved[2] is not None:
        _, keys, position, has_gauss, cached = saved[2]
        packed[2] = keys.tobytes() + struct.pack("<qqd", position, has_gauss, cached)
    return packed


def _bytes_of(state):
    return b"" if state is None else state.numpy().tobytes()


def _tensor_of(packed):
    return torch.frombuffer(bytearray(packed), dtype=torch.uint8) if packed else None


def _unpacked(packed, like):
    words = struct.unpack(f"<{len(like[1][1])}Idd", packed[1])
    python = (like[1][0], words[:-2], words[-1] if words[-2] else None)
    numpy = None
    if like[2] is not None:
        name, keys, *_ = like[2]
        numpy = (name, sys.modules["numpy"].frombuffer(packed[2][:keys.nbytes], dtype=keys.dtype),
                 *struct.unpack("<qqd", packed[2][keys.nbytes:]))
    return _tensor_of(packed[0]), python, numpy, _tensor_of(packed[3])


def digest():
    """A number for each of the generators."""
    return [float(zlib.crc32(state)) for state in _packed(states())]


def same(one, other):
    return _packed(one) == _packed(other)


def generator_kinds():
    """The classes of generators that a script makes for itself."""
    numpy = _numpy()
    return (random.Random, torch.Generator) + ((numpy.Generator, numpy.RandomState, numpy.BitGenerator) if numpy else ())


def state_of(generator):
    """Of one that a script has made; restore_one() takes it."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    return _bits_of(generator).state


def restore_one(generator, state):
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, torch.Generator):
        generator.set_state(state)
    else:
        _bits_of(generator).state = state


def _bits_of(generator):
    """What holds the state of a generator of NumPy's."""
    if isinstance(generator, _numpy().RandomState):
        return generator._bit_generator
    return getattr(generator, "bit_generator", generator)


_NAMES = ("PyTorch's", "Python's", "NumPy's", "the device's")


def level(job, digests):
    """Gives all ranks the states of rank 0's generators, if some rank's differ. `digests`: of all ranks."""
    parted = [name for name, *each in zip(_NAMES, *digests) if len({*each}) > 1]
    if not parted:
        return
    randomness.note_loose()
    job.say(f"the ranks have drawn different amounts of {' and '.join(parted)} random numbers, since each has a part of the batch: "
            "these are not what one process would draw. Draw them as one tensor or array as long as the batch, or run on one rank", 1)
    saved = states()
    restore(_unpacked([job.group.broadcast(state, "the random states") for state in _packed(saved)], saved))


def share(job):
    level(job, job.group.gather(digest(), "the random states"))


# ---- samples


class Indices(list):
    """This rank's part of a batch's indices, [first, last) of the whole. `audited`: an audit wants the whole."""

    def __init__(self, whole, first, last, audited):
        super().__init__(whole[first:last])
        self.whole, self.first, self.last, self.audited = whole, first, last, audited

    def __reduce__(self):  # for a worker, which may be another Python
        return _indices_of_worker, (self.whole, self.first, self.last, self.audited)


def _indices_of_worker(*given):
    install()
    return Indices(*given)


class WholeBatch:
    """A whole batch: its samples, or the batch itself."""

    def __init__(self, samples, batch=None):
        self.samples, self.made = samples, batch

    def batch(self, collate):
        return self.made if self.samples is None else collate(self.samples)


def cut(data, is_column, first, last):
    """(a loader's data for a whole batch, with each column cut; whether there was a column)"""
    found = False

    def cut_leaf(leaf):
        nonlocal found
        if is_column(leaf):
            found = True
            return leaf[first:last]
        if isinstance(leaf, collections.abc.MutableMapping):  # one that PyTorch does not look into
            leaf = copy.copy(leaf)
            for key, value in leaf.items():
                leaf[key] = tree_map(cut_leaf, value, is_leaf=is_column)
        return leaf

    return tree_map(cut_leaf, data, is_leaf=is_column), found


def rows_of(leaf):
    """The length of a tensor or an array; None of anything else."""
    shape = getattr(leaf, "shape", None)
    return len(leaf) if isinstance(shape, tuple) and shape else None


def is_column(value, count):
    """Whether it has a row for each of `count` samples: a tensor, an array, or words and numbers in a list."""
    if type(value) in (list, tuple):
        return len(value) == count and all(isinstance(item, (str, bytes, int, float)) for item in value)
    return rows_of(value) == count


def size_of(sample):
    """The sizes that a collation may pad: the lengths of a sample's texts and lists, and the shapes of its tensors."""
    if isinstance(sample, (str, bytes)):
        return len(sample)
    if isinstance(sample, collections.abc.Mapping):
        return tuple(size_of(value) for value in sample.values())
    if isinstance(sample, (list, tuple)):
        numbers = not sample or isinstance(sample[0], (int, float))
        return len(sample) if numbers else tuple(size_of(item) for item in sample)
    return getattr(sample, "shape", None)


def _total(size):
    return sum(map(_total, size)) if isinstance(size, tuple) else size or 0


def _shapes_of(data):
    found = []

    def note(leaf):
        if isinstance(leaf, collections.abc.MutableMapping):  # one that PyTorch does not look into
            tree_map(note, dict(leaf))
        elif rows_of(leaf) is not None:
            found.append(tuple(leaf.shape))
        return leaf

    tree_map(note, data)
    return found


def _is_padded(alone, whole, count):
    """Whether a batch of `count` samples has other columns than one sample's batch, while the rest is alike in both."""
    shapes = _shapes_of(alone), _shapes_of(whole)
    columns = [one[0] == 1 and all_[0] == count for one, all_ in zip(*shapes)]
    if len(shapes[0]) != len(shapes[1]) or any(one != all_ for one, all_, column in zip(*shapes, columns) if not column):
        return False  # samples are joined end to end, or kept in lists: such a batch is not cut
    return any(one[1:] != all_[1:] for one, all_ in zip(*shapes))


class Collation:
    """The collation of samples, of which this rank keeps some. If it draws numbers or pads, it makes the whole batch, which is
    then cut."""

    def __init__(self, collate):
        self.collate, self.draws = collate, False
        self.size = None  # of all samples so far
        self.pads = None  # None: not known, since all samples had that size

    def uneven(self, samples):
        """Whether some differ in size from others, or from earlier ones, and it is not known yet if the collation pads."""
        if self.pads is not None or not samples:
            return False
        if self.size is None:
            self.size = size_of(samples[0])
        return any(size_of(sample) != self.size for sample in samples)

    def look_for_padding(self, samples):
        """Finds out whether the collation pads: compares a batch of one sample with the batch of all."""
        shortest = min(samples, key=lambda sample: _total(size_of(sample)))
        with restored():
            try:
                self.pads = _is_padded(self.collate(copy.deepcopy([shortest])), self.collate(copy.deepcopy(samples)), len(samples))
            except Exception:  # of the script's code, which may need more than one sample
                self.pads = False

    def __call__(self, samples, first, last, audited):
        """(the local batch, the WholeBatch for an audit, or None)"""
        if len(samples) > 1 and self.uneven(samples):
            self.look_for_padding(samples)
        before = states()
        if not self.draws and not self.pads:
            data = self.collate(samples[first:last])
            if same(before, states()):
                return data, WholeBatch(samples) if audited else None
            self.draws = True
            restore(before)
        whole = self.collate(samples)
        self.draws = self.draws or not same(before, states())
        whole_batch = WholeBatch(None, copy.deepcopy(whole)) if audited else None
        data, found = cut(whole, functools.partial(is_column, count=len(samples)), first, last)
        if not found:
            randomness.note_loose()
            with restored():
                torch.manual_seed(zlib.crc32(_packed(before)[0]) + first)
                data = self.collate(samples[first:last])
        return data, whole_batch


def _keeps_generators(root):
    """Whether a dataset, or an object inside it, has generators of its own."""
    kinds = generator_kinds()
    reached, seen = [root], set()
    while reached and len(seen) < _OBJECTS:
        item = reached.pop()
        if isinstance(item, kinds):
            return True
        if id(item) in seen or isinstance(item, (torch.Tensor, type, str, bytes, int, float)):
            continue
        seen.add(id(item))
        if isinstance(item, (list, tuple, set)):
            reached += list(item)[:32]
        elif isinstance(item, dict):
            reached += list(item.values())[:32]
        else:
            reached += getattr(item, "__dict__", {}).values()
    return False


class _Fetch:
    """Makes the samples of one fetcher: those of the whole batch, or of the local one."""

    def __init__(self, fetcher, stock):
        self.stock = functools.partial(stock, fetcher)
        self.fetcher, self.collation = fetcher, Collation(fetcher.collate_fn)
        self.whole = None  # not known yet
        self.keeps_generators = _keeps_generators(fetcher.dataset)

    def samples(self, indices):
        self.fetcher.collate_fn = _nothing
        try:
            return self.stock(indices)
        finally:
            self.fetcher.collate_fn = self.collation.collate

    def __call__(self, indices):
        """[whether the whole batch's samples were drawn, the local batch, the whole batch for an audit]"""
        before = states()
        if self.whole is False and not self.collation.draws and not self.collation.pads:
            samples = self.samples(list(indices))
            if not self.collation.uneven(samples):
                data = self.collation.collate(samples)
                if same(before, states()):
                    return [False, data, None]
            self.whole = not same(before, states())
            restore(before)
        samples = self.samples(indices.whole)
        if len(samples) != len(indices.whole):  # no list of samples: only the collation knows its form
            restore(before)
            return [False, self.stock(list(indices)), None]
        if self.whole is None:
            self.whole = self.keeps_generators or not same(before, states())
        local, whole_batch = self.collation(samples, indices.first, indices.last, indices.audited)
        return [self.whole or self.collation.draws, local, whole_batch]


def _nothing(samples):
    return samples


def _wrap(stock):
    @functools.wraps(stock)
    def fetch(self, possibly_batched_index):
        if not isinstance(possibly_batched_index, Indices):
            return stock(self, possibly_batched_index)
        if "_castor_fetch" not in self.__dict__:
            self._castor_fetch = _Fetch(self, stock)
        return self._castor_fetch(possibly_batched_index)

    fetch.castor_divides = True
    return fetch


def install():
    if not hasattr(torch.utils.data._utils.fetch._MapDatasetFetcher.fetch, "castor_divides"):
        patching.replace("torch.utils.data._utils.fetch._MapDatasetFetcher.fetch", _wrap)
