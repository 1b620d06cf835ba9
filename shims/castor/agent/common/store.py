"""The agent's side of the store: its groups, and which parameter is which of its tensors."""
import atexit
import ctypes
import functools
import operator
import os
import weakref
import zlib
from ctypes import byref, c_void_p

import torch

from .. import core
from . import tensors, traced


class Entry:
    """A registered parameter. What follows `window` belongs to the gradients (backward/gradients.py).

    gradient  the state of its gradient, which the core changes (interpose/gradients/gradient_state.h)
    hidden    the gradient that p.grad shows outside of backward; meanwhile p.grad is None, so that autograd does not add to it
    """

    __slots__ = (
        "parameter", "key", "handle", "handle_id", "group", "owner", "node", "single_sum", "stepped_here", "summed_here", "shared", "bytes",
        "param_alias", "sum_alias", "window", "window_address", "gradient", "shown", "shown_version", "synchronizers", "hidden", "overflowed",
        "layout", "dtype", "has_left", "__weakref__",
    )

    def __init__(self, group, p):
        self.key, self.group, self.synchronizers = id(p), group, weakref.WeakSet()
        self.watch(p)

    def watch(self, p):
        self.parameter = weakref.ref(p, tensors.while_python_runs(self.forget))

    def register(self, p, handle, sum_dtype):
        """From here on the parameter is the store's tensor `handle`."""
        info = core.TensorInfo()
        core.tensor_get(handle, byref(info))
        self.handle, self.handle_id = handle, info.id
        self.layout, self.dtype, self.has_left = tensors.layout(p), p.dtype, False
        self.node = info.node  # the keeper, if nodes shard; -1: each node's owner steps it
        self.single_sum = bool(info.single_sum)  # only the keeper has the sum: elsewhere a page fault loads it
        self.stepped_here, self.summed_here = bool(info.stepped_here), bool(info.summed_here)
        self.gradient = info.gradient.contents
        self.owner, self.shared, self.bytes = info.owner, bool(info.shared), info.bytes
        like = p.data
        self.param_alias = tensors.tensor_at(info.param_alias, like) if self.shared else None
        self.sum_alias = tensors.tensor_at(info.sum, like.to(sum_dtype) if sum_dtype is not like.dtype else like)
        self.window = self.window_address = None
        self.shown, self.shown_version = None, 0
        self.overflowed = None  # precision/loss_scale.py
        self.hidden = None

    @property
    def mine(self):
        return self.owner == self.group.rank

    @property
    def synced(self):
        """No gradient has come since the last sum was shown."""
        return self.gradient.phase == core.GRADIENT_SUMMED

    @property
    def added(self):
        """The running backward has added a gradient to the sum."""
        return self.gradient.phase == core.GRADIENT_ADDED

    @property
    def carried(self):
        """The next backward adds to the sum: a micro-step is over, and its step is still to come."""
        return self.gradient.carry == core.GRADIENT_CARRIED

    @property
    def carrying(self):
        """The running backward adds to the sum."""
        return self.gradient.carry == core.GRADIENT_CARRYING

    def forget(self):
        if _entries.get(self.key) is self:
            del _entries[self.key]
        if active():
            core.tensor_forget(self.handle)

    def shows_window(self, grad):
        """`grad` is the window that Castor gave, and the script has not put another tensor in its place."""
        return self.window is not None and grad is not None and tensors.is_at(grad, self.window_address, self.sum_alias)

    def shown_grad(self):
        """The tensor that stood in p.grad after the last synchronized backward, if it is still alive."""
        return None if self.shown is None else self.shown()

    def over_window(self, handle, address):
        """A tensor over a window on the newest sum, which core.windows_show took."""
        self.window, self.window_address = handle, address
        return tensors.tensor_at(address, self.sum_alias, lambda: self._window_freed(handle))

    def _window_freed(self, handle):
        if self.window == handle:
            self.window = self.window_address = None
        if active():
            core.window_return(handle)


class Group:
    """The store of one set of ranks, all on this node.

    across  the other nodes of the set (nodes/across.py); None on one node
    total   the number of its ranks on all nodes
    """

    def __init__(self, name, rank, world, token=None, owners=None, across=None, total=None):
        handle = c_void_p()
        core.store_open(name.encode(), token, rank, world, owners or world, byref(handle))
        self.handle, self.rank, self.world, self.name = handle.value, rank, world, name
        self.across, self.total = across, total or world
        self.sums = 0  # backward passes synchronized
        atexit.register(self._leave)

    @property
    def nodes(self):
        """The node of each of these ranks."""
        return [0] * self.world

    @property
    def sharded(self):
        """Each optimizer state is kept by one node only, whose owner steps it."""
        return self.across is not None and self.across.peers is not None

    @property
    def single(self):
        """Larger sums, and perhaps larger parameters, are kept by one node only."""
        return self.across is not None and self.across.kinds > 0

    def _leave(self):
        if active():
            core.store_leave(self.handle)

    def union(self, flags, what):
        """Which of the flags are set on some rank. None: the ranks have different numbers of them."""
        packed = [float(int("".join("1" if v else "0" for v in flags[i:i + 48]), 2)) for i in range(0, len(flags), 48)]
        every = self.gather(packed + [float(len(flags))], what)
        if any(row[-1] != len(flags) for row in every):
            return None
        either = [functools.reduce(operator.or_, (int(row[i]) for row in every)) for i in range(len(packed))]
        bits = "".join(format(u, f"0{min(48, len(flags) - 48 * i)}b") for i, u in enumerate(either))
        return [bit == "1" for bit in bits]

    def begin_step(self, agreed, said=()):
        """On every rank: begins a step. `agreed`: (label, number) of each value that must be equal on all ranks. `said`: numbers
        of this rank, the same count on all. Returns the `said` of each rank, in rank order."""
        labels = (ctypes.c_char_p * len(agreed))(*[label.encode() for label, _ in agreed])
        values = (ctypes.c_double * len(agreed))(*[value for _, value in agreed])
        every = (ctypes.c_double * (len(said) * self.world))()
        core.step_begin(self.handle, values, labels, len(agreed), (ctypes.c_double * len(said))(*said), len(said), every)
        return [every[r * len(said):(r + 1) * len(said)] for r in range(self.world)]

    def barrier(self, what):
        core.barrier(self.handle, what.encode())

    def broadcast(self, data, what):
        """Rank 0's bytes, on every rank; all pass the same length."""
        buffer = ctypes.create_string_buffer(data, len(data))
        core.broadcast(self.handle, buffer, len(data), what.encode())
        return buffer.raw

    def failure(self):
        """(rank where the failure began, -1: no single one; why the group cannot go on). None: it can go on."""
        text = ctypes.create_string_buffer(1024)
        blamed = core.failure_get(self.handle, text, len(text))
        return None if blamed == -2 else (blamed, text.value.decode(errors="replace"))

    def every_rank_can(self, key, able):
        """Whether every rank called with this key, and was able."""
        committed = ctypes.c_int()
        core.consensus(self.handle, key, int(able), byref(committed))
        return bool(committed.value)

    def gather(self, values, what):
        """A list of numbers of each rank, in rank order; all pass the same count."""
        mine = (ctypes.c_double * len(values))(*values)
        out = (ctypes.c_double * (len(values) * self.world))()
        core.gather(self.handle, mine, ctypes.sizeof(mine), out, what.encode())
        return [list(out[r * len(values):(r + 1) * len(values)]) for r in range(self.world)]


_groups = {}
_entries = {}  # id(parameter): Entry; the entry's weak reference says whether the id is still that parameter's
_pid = os.getpid()


def active():
    """False in forked children: there the tensors are ordinary memory."""
    return os.getpid() == _pid


def begin():
    """This process is one whose tensors are the store's, wherever it was forked before."""
    global _pid
    _pid = os.getpid()


def groups():
    return list(_groups.values())


def group(name, rank, world, **of_nodes):
    if name not in _groups:
        traced.need_castor()
        _groups[name] = Group(name, rank, world, **of_nodes)
    return _groups[name]


def entries():
    return list(_entries.values())


def entry_of(p):
    entry = _entries.get(id(p))
    return entry if entry is not None and entry.parameter() is p else None


def parameters_of(optimizer):
    """The optimizer's parameters in its order, each once: PyTorch only warns if a script lists one twice."""
    return list(dict.fromkeys(p for group in optimizer.param_groups for p in group["params"]))


def handles(entries):
    return core.pointers([e.handle for e in entries])


def carry(wanted):
    """`wanted`: of each entry, whether the next backward shall add to its sum."""
    core.gradients_carry(handles(wanted), len(wanted), (ctypes.c_uint8 * len(wanted))(*wanted.values()))


def edited(entries):
    """Of entries whose p.grad shows their window, those whose window differs from the newest sum."""
    found = (ctypes.c_uint64 * len(entries))()
    core.windows_edited(core.pointers([e.window for e in entries]), len(entries), found)
    return {e for e, changed in zip(entries, found) if changed}


def changed(pairs):
    """Of (entry, parameter) each, with a gradient: the entries whose p.grad has changed since the last backward showed it."""
    found, shown = set(), []
    for entry, p in pairs:
        if p.grad is not entry.shown_grad():
            found.add(entry)
        elif entry.shows_window(p.grad):
            shown.append(entry)
        elif p.grad._version != entry.shown_version:
            found.add(entry)
    return found | edited(shown)


def release(parameters):
    """Moves the parameters back to private memory; they are no longer Castor's."""
    for p in parameters:
        entry = entry_of(p)
        if entry is not None:
            core.tensor_release(entry.handle)
            del _entries[id(p)]


def let_go(pairs):
    """Of (parameter, entry) each: the script has given the parameter memory that the store cannot have."""
    for p, entry in pairs:
        _forget_before(p, entry)
        if _entries.get(id(p)) is entry:
            del _entries[id(p)]


# ---- registration


def fresh_of(grp, parameters):
    """Which of `parameters` must be registered: those that are fresh on any rank, of any node. On every rank together."""
    fresh = [is_fresh(p) for p in parameters]
    digest = float(zlib.crc32(bytes(fresh)))
    every = grp.gather([float(len(fresh)), digest], "which parameters are registered")
    other = next((rank for rank, row in enumerate(every) if row[0] != every[0][0]), None)
    if other is not None:
        raise core.GroupError(f"castor: the ranks' models differ: rank 0 has {every[0][0]:.0f} parameters to share, rank {other} has "
                              f"{every[other][0]:.0f}. Build the same model on every rank")
    if any(row != every[0] for row in every):
        fresh = grp.union(fresh, "which parameters are registered")
    if grp.across is not None:
        fresh = grp.across.union(fresh)
    return [p for p, is_fresh in zip(parameters, fresh) if is_fresh]


def is_fresh(p):
    """Whether the parameter is not registered, or has another size or layout since, or has left the store."""
    entry = entry_of(p)
    return entry is None or entry.has_left or entry.sum_alias.numel() != p.numel() or entry.layout != tensors.layout(p)


def adopt(grp, parameters, float_sums=False):
    """Registers those of `parameters` that are fresh, on every rank of the group together. Returns the entries, in the
    order given. `float_sums`: the gradients of 16-bit parameters, and their sums, are float."""
    fresh = fresh_of(grp, parameters)
    if fresh:
        descriptions = (core.Description * len(fresh))()

        def widened(p):
            return float_sums and p.dtype in (torch.float16, torch.bfloat16)

        for p, d in zip(fresh, descriptions):
            if entry_of(p) is not None:
                _forget_before(p, entry_of(p))
            move_to_own_block(p)
            d.address, d.numel, d.dtype, d.layout = p.data_ptr(), p.numel(), tensors.DTYPES[p.dtype], tensors.layout(p)
            d.flags = core.DESCRIPTION_WHOLE * tensors.owns_whole_storage(p) | core.DESCRIPTION_FLOAT_SUM * widened(p)
        handles = (c_void_p * len(fresh))()
        core.register(grp.handle, descriptions, len(fresh), handles)
        for p, handle in zip(fresh, handles):
            entry = entry_of(p)
            if entry is None or entry.group is not grp:
                entry = _entries[id(p)] = Entry(grp, p)
            entry.register(p, handle, torch.float32 if widened(p) else p.dtype)
        if grp.across is not None:
            grp.across.adopted([entry_of(p) for p in fresh])  # also frees copies of data that other nodes keep
    return [entry_of(p) for p in parameters]


def _forget_before(p, entry):
    """Before `p` is registered anew: its gradient, its states and the block that it was bound to keep their values, in memory of this rank's own."""
    core.windows_detach(entry.handle)
    core.tensor_unbind(entry.handle)
    core.tensor_forget(entry.handle)


def move_to_own_block(p):
    """Moves a large parameter to a block that can be mapped over, if its memory cannot be and nothing else can reach that
    memory."""
    nbytes = p.numel() * p.element_size()
    if not core.is_paged(nbytes) or core.is_mappable(p.data_ptr(), nbytes, tensors.owns_whole_storage(p)):
        return
    if type(p) in (torch.nn.Parameter, torch.Tensor) and not tensors.is_reached(p):
        with torch.no_grad():
            p.data = p.data.clone(memory_format=torch.preserve_format)


# ---- where the script has its parameters


def look(entries):
    """Which parameters the script has given other memory, on this rank. Returns an array of flags; None: there is no such."""
    pairs = [(e.parameter(), e) for e in entries]
    layouts = (ctypes.c_uint64 * len(pairs))(*[tensors.layout(p) for p, _ in pairs])
    away = (ctypes.c_uint8 * max(len(pairs), 1))()
    found = core.bindings_check(handles(entries), core.pointers([p.data_ptr() for p, _ in pairs]),
                               layouts, len(pairs), away)
    return away if found else None


def settle(grp, entries, states):
    """On every rank together: the store takes the memory that the script gave parameters, or the parameters leave the store
    (interpose/store/binding.h). `states`: for each entry, (a digest of its optimizer states, whether one lies outside of the
    store, whether something else can reach that one). Returns the entries that left."""
    claims = (core.BindingClaim * max(len(entries), 1))()
    for entry, claim, (digest, away, reached) in zip(entries, claims, states):
        p = entry.parameter()
        claim.address, claim.layout, claim.bytes, claim.states = p.data_ptr(), tensors.layout(p), tensors.extent(p), digest
        claim.flags = (core.BINDING_WHOLE * tensors.owns_whole_storage(p) | core.BINDING_STATES_AWAY * away
                       | core.BINDING_STATES_REACHED * reached)
    verdicts = (ctypes.c_uint8 * max(len(entries), 1))()
    core.bindings_settle(grp.handle, handles(entries), claims, len(entries), verdicts)
    left = [e for e, verdict in zip(entries, verdicts) if verdict == core.BINDING_ENDS and e.shared]
    for entry in left:
        entry.shared, entry.has_left = False, True
    return left
