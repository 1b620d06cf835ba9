"""What is known of each parameter on a device whose gradients are summed over ranks."""
import contextlib
import ctypes
import datetime
import functools
import weakref

import torch
import torch.distributed as dist
from torch.utils.weak import WeakTensorKeyDictionary

from .. import core
from ..common import tensors
from ..device import choice
from ..nodes import grouping
from ..precision import masters

_entries = WeakTensorKeyDictionary()
_places = WeakTensorKeyDictionary()  # a parameter that is not adopted yet: (its owner, whether this rank does not compute with it)
_groups = {}  # ranks of a process group: its Group


class Group:
    """The ranks of a process group, each on a device.

    ranks    of the whole job, by their number in the group
    control  the store's group of them, over which they compare what must be alike; where they are on several nodes, a nodes.control.Control
    secret   by which the ranks of this one's node find each other; None: by the job's token
    places   the place of each rank on its node
    beside   the ranks on this one's node
    in_lane  those, one on each node, that have this one's place there"""

    def __init__(self, process_group, ranks, control, secret=None):
        self.process_group, self.ranks, self.control = process_group, ranks, control
        self.rank, self.world = process_group.rank(), process_group.size()
        self.together = process_group._get_backend(torch.device("cuda")).supports_coalescing  # calls can be enqueued as one
        self.optimizers = self.sharded = self.masters = 0  # of whose states, sums and masters owners keep: numbered alike on all ranks
        self.nodes, self.secret = control.nodes, secret
        self.places = [self.nodes[:rank].count(node) for rank, node in enumerate(self.nodes)]
        self.beside = [rank for rank, node in enumerate(self.nodes) if node == self.nodes[self.rank]]
        self.in_lane = [rank for rank, place in enumerate(self.places) if place == self.places[self.rank]]
        self.shares_nothing = len(set(map(self.nodes.count, self.nodes))) > 1  # of parameters (shared.py): nodes with different numbers of ranks
        if self.shares_nothing and core.plugin_shards() > 2 and not self.rank:
            core.log(2, b"parameters that leave a device are on the host of each rank: the ranks of a node keep them once only where all nodes have as many ranks")
        self.parameters_on_host, self.passed, self.token = 0, 0, None
        self.operations = 0  # on all gradients, alike on all ranks: a digest

    @property
    def one_node(self):
        return len(self.beside) == self.world

    @functools.cached_property
    def lane(self):
        """The process group of `in_lane`. The first use is a collective of them."""
        patience = datetime.timedelta(seconds=core.options.timeout)
        return dist.new_group([self.ranks[rank] for rank in self.in_lane], timeout=patience, backend=dist.get_backend(self.process_group), use_local_synchronization=True)

    def broadcast(self, sent, device, process_group=None):
        """Each (tensor, its owner in the process group) of `sent` becomes the owner's, in the order of the current stream. None: of all ranks."""
        process_group = process_group or self.process_group
        with dist._coalescing_manager(process_group, device=device, async_ops=True) if self.together else contextlib.nullcontext() as manager:
            works = [dist.broadcast(t, group_src=owner, group=process_group, async_op=True) for t, owner in sent]
        for work in (manager,) if self.together else works:
            work.wait()


def group_of(process_group, device):
    """`device`: of this rank. The first call is a collective of the ranks."""
    ranks = tuple(dist.get_process_group_ranks(process_group))
    if ranks not in _groups:
        control = grouping.control_of(process_group, device)
        choice.share(control, device.index)
        _groups[ranks] = Group(process_group, ranks, control, grouping.token_of(process_group))
    return _groups[ranks]


class Entry:
    """A parameter.

    owner    the rank of the group that steps it, if owners do
    synced   no gradient has come since the last sum was shown
    part     of the synchronizer that has summed it last
    summing  the synchronizer that sums its gradient in the running backward
    values   what alike.py knows of its values
    node     what the node keeps of it (shared.Node); None: every rank has it
    stays    that is so for good
    away     whether only ranks other than this one compute with it; None: nothing was said (place)"""

    __slots__ = "group", "owner", "synced", "part", "summing", "shown", "shown_version", "values", "node", "stays", "away", "__weakref__"

    def __init__(self, group, owner, away):
        self.group, self.owner, self.away = group, owner, away
        self.synced, self.part, self.summing = True, None, None
        self.shown, self.shown_version = None, 0
        self.values, self.node, self.stays = None, None, False

    @property
    def mine(self):
        return self.owner == self.group.rank

    @property
    def is_single(self):
        """The owner alone has the sum."""
        return self.part is not None and self.part.bucket.single

    def show(self, grad, part):
        """p.grad is the sum."""
        self.synced, self.part = True, part
        self.see(grad)

    def see(self, grad):
        """p.grad as it is now is known to be alike on all ranks."""
        self.shown = None if grad is None else weakref.ref(grad)
        self.shown_version = 0 if grad is None else grad._version

    def was_shown(self, grad):
        return self.shown is not None and self.shown() is grad

    def is_untouched(self, grad):
        """Whether nobody has changed p.grad since it was seen."""
        return grad is (None if self.shown is None else self.shown()) and (grad is None or grad._version == self.shown_version)


def entry_of(p):
    return _entries.get(p) if _entries else None


def serves_any():
    return bool(_entries)


def serves(parameters):
    """Whether some of these parameters have sums over ranks on devices."""
    return bool(_entries) and any(p in _entries for p in parameters)


def place(p, owner, away):
    """Where a parameter is to have its owner, when it is adopted. away: this rank will not compute with it. The owner is the same on all ranks."""
    _places[p] = owner, away


def adopt(group, parameters):
    """Returns the entries and the places (core.BucketPlace) of the parameters, and the number of buckets."""
    count, buckets = len(parameters), ctypes.c_uint32()
    places = (core.BucketPlace * count)()
    sizes = (ctypes.c_uint64 * count)(*[p.numel() * masters.gradient_dtype(p).itemsize for p in parameters])
    types = (ctypes.c_int32 * count)(*[tensors.DTYPES[masters.gradient_dtype(p)] for p in parameters])
    wanted = [_places.get(p, (-1, None)) for p in parameters]
    owners = (ctypes.c_int32 * count)(*[_entries[p].owner if p in _entries and _entries[p].group is group else owner for p, (owner, _) in zip(parameters, wanted)])
    core.buckets_divide(sizes, types, owners, count, group.world, places, ctypes.byref(buckets))
    for p, found, (_, away) in zip(parameters, places, wanted):
        if p not in _entries:
            _entries[p] = Entry(group, found.owner, away)
    return [_entries[p] for p in parameters], places, buckets.value


def release(parameters):
    """The parameters are the script's again."""
    for p in parameters:
        _entries.pop(p, None)


def why_unsupported(parameters):
    """Why gradients of these parameters on devices cannot be summed here; None when they can."""
    if len({p.device for p in parameters}) > 1:
        return "its parameters are on several devices"
    for p in parameters:
        why = tensors.why_unsupported(p, "cuda")
        if why:
            return f"a parameter of shape {tuple(p.shape)} cannot be shared: {why}"
    return None


def flat(t):
    """Its elements in the order of memory: whatever its strides, it is dense."""
    return t.data.as_strided((t.numel(),), (1,))


def view_of(memory, place, like):
    """The tensor over a bucket's memory that is shaped like `like`."""
    return memory.as_strided(like.shape, like.stride(), place.offset // memory.element_size())
