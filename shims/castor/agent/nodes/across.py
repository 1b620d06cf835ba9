"""Several nodes: each has its store, and the owners of the same tensors, one on each node, exchange sums.

The exchange uses process groups of PyTorch, in the order of the script's own calls."""
import atexit
import ctypes
import datetime
import pickle
import sys
import weakref
import zlib

import torch
import torch.distributed as dist

from .. import core
from ..common import store, tensors
from .peers import Peer, own_address
from .schedule import Schedule

REDUCE_BYTES = 4 << 20  # a sum goes to the node that keeps it in pieces of this size


class Across:
    """The other nodes, for one store.Group.

    group   the store's group of this node
    place   where this rank stands (castor_nodes)
    lane    process group of the ranks with this one's local rank; None: this rank owns nothing
    peers   by node, where its data can be read; None: every node keeps everything
    kinds   data that one node only keeps, besides optimizer states: 0 none, 1 larger sums, 2 larger parameters too
    """

    def __init__(self, place, lane, make=None):
        """make(ranks): the lane's process group; None: PyTorch's, of the script's world."""
        self.group, self.place, self.peers, self.lane_ranks = None, place, None, lane
        self.synchronizers = weakref.WeakSet()
        self.leader = None  # the first one whose gradients the running backward makes
        self.ahead = True  # the sums of the next backward may be exchanged while it runs: it reaches what this one has reached
        self.merges = False  # neighbouring ranges are exchanged as one: they lie alike on all nodes
        self.kinds = self.readers = 0  # readers: ranks of other nodes that may read from this rank at any time
        self.told, self.directory = b"", []  # this rank's directory of states, and that of its lane, as they were last exchanged
        self.lane = (make or _new_group)(lane) if lane else None

    def guarded(self, function, *arguments):
        """Calls a function that runs the lane's collectives. Tells this node's ranks if a rank of another node is gone."""
        try:
            return function(*arguments)
        except core.Error:
            raise
        except RuntimeError as error:
            others = [rank for node, rank in enumerate(self.lane_ranks) if node != self.place.node]
            text = (f"rank {' or '.join(map(str, others))}, on another node, has ended or cannot be reached; what that node "
                    f"says tells why ({core.shortened(str(error).strip().splitlines()[0], 300)})")
            core.fail(self.group.handle, text.encode(), 0)
            raise core.GroupError("castor: " + text) from error

    def shard(self, process_group, identities, token, parameter_bytes):
        """One node only keeps each optimizer state, and other data that the plugin shards. Each node's first rank serves reads of
        the others. parameter_bytes: of the first model, which tell whether a node needs a budget."""
        port = ctypes.c_int()
        core.store_shard(self.group.handle, self.place.node, self.place.node_count)
        address = own_address().encode()
        if self.group.rank == 0:
            core.serve(self.group.handle, token, address, ctypes.byref(port))
        mine = Peer(address, port.value, token), _why_no_demand(parameter_bytes, self.place.node_count)
        every = [None] * len(identities)
        dist.all_gather_object(every, mine, group=process_group)
        self.peers = [every[identities.index(identity)][0] for identity in dict.fromkeys(identities)]
        why = next((why for _, why in every if why), None)
        if why is None and core.plugin_shards() > 1:
            self._keep_once(core.plugin_shards() - 1, len(identities))
        elif core.plugin_shards() > 1 and dist.get_rank() == 0:
            core.log(2, f"several nodes: optimizer states are sharded; gradients and parameters stay on every node: {why}".encode())

    def _keep_once(self, kinds, world):
        addresses = (ctypes.c_char_p * len(self.peers))(*[peer.address for peer in self.peers])
        tokens = (ctypes.c_char_p * len(self.peers))(*[peer.token for peer in self.peers])
        ports = (ctypes.c_int * len(self.peers))(*[peer.port for peer in self.peers])
        core.demand(self.group.handle, kinds, addresses, ports, tokens)
        self.kinds = kinds
        self.readers = world - self.group.world if self.group.rank == 0 else 0
        if not _singles:
            atexit.register(_leave)
        _singles.append(self)

    def begin(self, synchronizer):
        """A backward makes the first gradient of a model. Of several models the first alone exchanges before the end, and no
        other waits for the nodes meanwhile: the order of exchanges is the same on all nodes."""
        first = self.leader is None
        if first:
            self.leader = synchronizer
        if self.kinds and (first or not synchronizer.let_go_before):
            self._let_go()
        if synchronizer.schedule is not None:
            synchronizer.schedule.begin()

    def _let_go(self):
        """Releases the last sums of the models that this backward may reach: no rank looks at those that another node keeps."""
        for synchronizer in self.synchronizers:
            synchronizer.let_go_before = synchronizer.expecting
            if synchronizer.expecting:
                synchronizer.let_go()
        self.meet("the begin of a backward")

    def go_on(self, synchronizer):
        if self.leader is synchronizer and synchronizer.schedule is not None:
            synchronizer.schedule.go_on()

    def end(self, synchronizer):
        if self.leader is synchronizer:
            self.leader = None

    def sum(self, entries, used, schedule):
        """After the node's sums are complete: adds those of the other nodes, and sets used[i] if any node used parameter i.
        Returns the schedule of the next backward. `schedule`: of this one."""
        if schedule is not None and not schedule.fits(entries):
            schedule = None
        if self.lane is not None:
            self.guarded(self._sum_owned, entries, used, schedule)
        core.sums_settle(self.group.handle, self.place.node, core.pointers([e.handle for e in entries]), len(entries), used)
        if self.lane is None or not self.ahead or schedule is not None and schedule.holds(entries, used):
            return schedule
        return Schedule(self, entries, used)

    def _sum_owned(self, entries, used, schedule):
        if schedule is not None:
            schedule.finish()
        mine = [i for i, e in enumerate(entries) if e.mine]
        layout = _layout(core.EXCHANGE_SUMS, entries)
        words = (used[i] or entries[i].carrying for i in mine)
        *any_used, layout, negative_layout = self._agree(*words, layout, -layout)
        for i, u in zip(mine, any_used):
            used[i] = u
        self.merges = layout == -negative_layout
        early = schedule.chosen if schedule is not None else ()
        for work in self.exchange(self.plan(entries, [i for i, u in zip(mine, any_used) if u and entries[i] not in early])):
            work.wait()
        self.drop([entries[i] for i in mine], sums=True)
        if self.kinds:
            dist.barrier(group=self.lane)  # the keepers have added the sums that they received: these can be read there

    def plan(self, entries, chosen):
        """(tensor, the node that keeps its sum; -1: every node), in the same order on every node."""
        return _ranges(core.EXCHANGE_SUMS, entries, chosen, self.merges)

    def exchange(self, plan):
        """Yields the works of the plan. It waits for none of them: the caller does, before it takes the next."""
        for tensor, node in plan:
            if node < 0:
                yield self.all_reduce(tensor)
            else:
                yield from self.reduce(tensor, node)

    def drop(self, entries, sums):
        """Frees the copies of entries that other nodes keep. On the owners, after the last use of the copies."""
        if self.kinds:
            core.demand_drop(sums, core.pointers([e.handle for e in entries]), len(entries))

    def meet(self, where="an optimizer step"):
        """A barrier of every rank of every node: each has read what it needs of the others."""
        self.group.barrier(where)
        if self.lane is not None:
            self.guarded(self._agree)
        if self.kinds:
            self.group.barrier(where)  # for ranks in no lane, or in another one

    def changed(self, entries, sums):
        """The keepers have changed sums, or parameters, outside of the exchanges: no rank sees the old ones any more."""
        self.meet("an operation on what the nodes share")
        self.drop(entries, sums)
        self.group.barrier("an operation on what the nodes share")

    def total(self, values, largest=False):
        """The sum, or the largest, of each number over the nodes' first ranks; all ranks get them."""
        values = torch.tensor(values, dtype=torch.float64)
        if self.group.rank == 0:
            operation = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
            self.guarded(dist.all_reduce, values, operation, self.lane)
        return torch.frombuffer(bytearray(self.group.broadcast(values.numpy().tobytes(), "an operation on all gradients")), dtype=torch.float64).tolist()

    def union(self, flags):
        """Which of a model's flags any node has set."""
        if self.alike(len(flags) << 32 | zlib.crc32(bytes(flags))):
            return flags
        if not self.alike(len(flags)):
            raise core.GroupError(f"castor: the nodes' models differ: this one has {len(flags)} parameters to share, and another one a different number. Build the "
                                  "same model on every rank")
        return [bool(flag) for flag in self.total(list(map(float, flags)), largest=True)]

    def alike(self, number):
        """Whether all nodes pass the same whole number, of up to 53 bits."""
        return self.total([number, -number], largest=True) == [number, -number]

    def _agree(self, *words):
        """The largest of each of the words (whole numbers), over the lane. An error if the nodes' last steps differed."""
        agreed = core.agreed_take(self.group.handle)
        words = torch.tensor([*words, agreed, -agreed], dtype=torch.int64)
        dist.all_reduce(words, op=dist.ReduceOp.MAX, group=self.lane)
        *words, agreed, negative = words.tolist()
        if agreed != -negative:
            raise core.GroupError(
                "castor: the nodes disagree: the model's parameters and how they lie in memory, learning rates and other "
                "hyperparameters, and what the script makes of gradients must be the same on every rank. (CASTOR_PLUGIN=none "
                "leaves all of it to PyTorch)")
        return words

    def adopted(self, entries):
        """Parameters have been registered: their owners, and which of them are shared, must be the same on every node."""
        if self.lane is not None:
            self.guarded(self._agree)
        for sums in (True, False):
            self.drop(entries, sums)
        if self.kinds and self.lane is not None:
            self.guarded(self._sweep)
        self.group.barrier("the adoption of parameters")

    def _sweep(self):
        """Frees the memory of models that the script has dropped on all nodes."""
        count = core.demand_forgotten(self.group.handle, None, 0)
        gone = torch.zeros(count, dtype=torch.uint8)
        flags = (ctypes.c_uint8 * count).from_address(gone.data_ptr())
        core.demand_forgotten(self.group.handle, flags, count)
        dist.all_reduce(gone, op=dist.ReduceOp.MIN, group=self.lane)
        core.demand_sweep(self.group.handle, flags, count)

    def spread(self, entries, stepped, directory, sums_too):
        """After the owners' step: sends parameters, directories and, if the step changed them (`sums_too`), sums to the other
        nodes. `entries`: all that the step may have changed. `stepped`: those that this rank stepped. Returns the entries that
        its counterparts stepped, and the directory of its lane."""
        if self.lane is None:
            return [], directory
        return self.guarded(self._spread_owned, entries, stepped, directory, sums_too)

    def _spread_owned(self, entries, stepped, directory, sums_too):
        mine = [i for i, e in enumerate(entries) if e.mine and e.node >= 0]
        by_entry = {id(e) for e in stepped}
        layout = _layout(core.EXCHANGE_PARAMETERS, entries)
        told = pickle.dumps(directory) != self.told
        words = (id(entries[i]) in by_entry for i in mine)
        *any_stepped, layout, negative_layout, told = self._agree(*words, layout, -layout, told)
        changed = [i for i, s in zip(mine, any_stepped) if s]
        alike = layout == -negative_layout
        moves = _ranges(core.EXCHANGE_PARAMETERS, entries, changed, alike)
        if sums_too:
            moves += _ranges(core.EXCHANGE_STEPPED_SUMS, entries, changed, merge=False)
        for tensor, node in moves:
            self.broadcast(tensor, node)
        for sums in (False, True) if sums_too else (False,):
            self.drop([entries[i] for i in changed], sums)
        if told:  # rarely: states stay in their places
            self.told, directories = pickle.dumps(directory), [None] * self.place.node_count
            dist.all_gather_object(directories, directory, group=self.lane)
            self.directory = [row for rows in directories for row in rows]
        return [entries[i] for i in changed if not entries[i].stepped_here], self.directory

    def broadcast(self, tensor, node):
        dist.broadcast(tensor, group_src=node, group=self.lane)
        if node == self.place.node:
            core.node_bytes_add((self.place.node_count - 1) * tensor.nbytes)

    def all_reduce(self, tensor):
        """A ring's all-reduce sends each byte on 2 (n - 1) / n times per rank."""
        core.node_bytes_add(2 * (self.place.node_count - 1) * tensor.nbytes // self.place.node_count)
        return dist.all_reduce(tensor, group=self.lane, async_op=True)

    def reduce(self, tensor, node):
        """The sum over the lane, at the keeper only: its own values, then those of the other nodes in their order."""
        keeps = node == self.place.node
        for piece in tensor.split(REDUCE_BYTES // tensor.element_size()):
            pieces = [torch.empty_like(piece) for _ in self.lane_ranks] if keeps else None
            yield dist.gather(piece, pieces, group_dst=node, group=self.lane, async_op=True)
            if not keeps:
                core.node_bytes_add(piece.nbytes)
                continue
            for other, theirs in enumerate(pieces):
                if other != node:
                    piece.add_(theirs)


def _new_group(lane):
    patience = datetime.timedelta(seconds=core.options.timeout)
    return dist.new_group(lane, timeout=patience, backend="gloo", use_local_synchronization=True)


_singles = []  # the Across whose larger sums one node only keeps


def _leave():
    """The script has ended: the others may still read what this node keeps, unless the job has failed. (By an exception: they wait for this rank, perhaps.)"""
    if not store.active() or hasattr(sys, "last_value"):
        return
    for across in _singles:
        core.demand_leave(across.group.handle)
    readers = sum(across.readers for across in _singles)
    try:
        for across in _singles:
            core.serve_wait(across.group.handle, readers)
    except core.GroupError:  # said already
        pass


_PARTS = 4  # as large as the parameters: these, gradients, and Adam's two states, which are sharded first


def _why_no_demand(parameter_bytes, nodes):
    """Why page faults of this rank cannot load the data that other nodes keep; None: they can."""
    if core.options.offload_dir:
        return "CASTOR_OFFLOAD_DIR names a disk"
    sharded = (core.plugin_shards() + 1) / _PARTS
    if core.places(int(parameter_bytes * (1 - sharded + sharded / nodes))):
        return "a memory budget has chunks on disk while they are not used"
    try:
        core.demand_probe()
    except core.Error as error:
        return str(error).removeprefix("castor: ")
    return None


def _layout(what, entries):
    """A digest of how entries lie: a parameter may lie in the store on one node and outside on another."""
    digest = ctypes.c_uint64()
    core.node_layout(what, core.pointers([e.handle for e in entries]), len(entries), ctypes.byref(digest))
    return digest.value


def _ranges(what, entries, chosen, merge):
    """(tensor, node) of each range to exchange of the chosen entries (indices), in the same order on every node."""
    wanted, ranges, count = (ctypes.c_uint8 * len(entries))(), (core.Range * len(entries))(), ctypes.c_uint32()
    for i in chosen:
        wanted[i] = 1
    core.node_ranges(what, core.pointers([e.handle for e in entries]), len(entries), wanted, merge, ranges, ctypes.byref(count))
    return [(_tensor_over(r), r.node) for r in ranges[:count.value]]


def _tensor_over(r):
    dtype = tensors.DTYPE_OF[r.dtype]
    memory = (ctypes.c_char * (r.numel * dtype.itemsize)).from_address(r.address)
    return torch.frombuffer(memory, dtype=dtype, count=r.numel)
