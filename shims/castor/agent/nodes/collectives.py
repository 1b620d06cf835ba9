"""Collectives of gloo go through the node's memory if all ranks of the process group are on this node. If they are on several
nodes, all-reduces, broadcasts and barriers do so in part.

Nothing is replaced unless gloo's objects have the layouts that the core expects (a process group of one rank shows that, once
per process), and all ranks of a process group agree when they make it, over PyTorch's store of it."""
import ctypes
import hashlib
import secrets
import sys
from datetime import timedelta

from .. import core

_PATIENCE = timedelta(seconds=30)  # for ranks that make the same process group
_TIMEOUT_MS = 54321  # an unusual number, to be found again
_THREADS = 2  # of a process group of gloo

_holds, _leads = None, False
_kept = {}  # process groups of leaders, by their ids


def wanted():
    return bool(core.plugin_engine()) and core.options.node_collectives == "auto"


def _layouts_hold():
    """Whether gloo's objects have the layouts that the core expects."""
    global _holds, _leads
    if _holds is None:
        try:
            _holds = _test()
            _leads = bool(core.layout_leads())
        except Exception as error:  # another version of PyTorch: anything may be missing
            _holds = False
            core.log(3, f"gloo's collectives stay as they are: the test of its layouts ended with {error!r}".encode())
    return _holds


def _test():
    import torch
    from torch.distributed import HashStore, ProcessGroupGloo

    options = ProcessGroupGloo._Options()
    options._devices = [ProcessGroupGloo.create_device(interface="lo")]
    options._timeout = timedelta(milliseconds=_TIMEOUT_MS)
    threads = options._threads
    core.contexts_watch()
    try:
        group = ProcessGroupGloo(HashStore(), 0, 1, options)
        if core.contexts_count() != 1 or threads != _THREADS:
            return False
        exchange = getattr(group, "alltoall_base", None) or group.all_to_all_single  # torch 2.15
        core.layout_begin()
        try:
            for numel in (7, 1000):
                data, out = torch.ones(numel), torch.zeros(numel)

                def expect(call, *places):
                    core.layout_expect(call, *places, numel, _TIMEOUT_MS, 0, 1)

                expect(0, None, data.data_ptr())
                group.allreduce([data]).wait()
                expect(1, None, data.data_ptr())
                group.broadcast([data]).wait()
                expect(2, data.data_ptr(), None)
                group.allgather([[out]], [data]).wait()
                expect(3, None, None)
                group.barrier().wait()
                expect(4, None, data.data_ptr())
                group.reduce([data]).wait()
                expect(5, data.data_ptr(), None)
                group.gather([[out]], [data]).wait()
                expect(6, data.data_ptr(), out.data_ptr())
                group.scatter([out], [[data]]).wait()
                expect(7, data.data_ptr(), out.data_ptr())
                exchange(out, data, [], []).wait()
            text = "castor: a test, to be caught"
            core.layout_throw(text.encode())
            core.layout_expect(3, None, None, 0, _TIMEOUT_MS, 0, 1)
            try:
                group.barrier().wait()
                thrown = False
            except RuntimeError as error:
                thrown = text in str(error)
        finally:
            held = core.layout_end()
        return bool(held and thrown and torch.equal(data, out))
    finally:
        core.contexts_unwatch()


def _place():
    """A text that is equal on processes that can share memory: a hash, since others can read the store."""
    job = core.options.job
    return hashlib.sha256(f"{job} {core.node_identity()}".encode()).hexdigest() if job else ""


def _same(texts):
    return "yes" if all(text == texts[0] for text in texts) else ""


def _nodes_of(texts):
    """The number of each rank's node, in rank order; empty if no memory can help. Each text is a place, and two values that must
    be the same on all ranks: the number of contexts, and whether leaders of nodes can exchange."""
    places = [text.split()[0] for text in texts]
    contexts, leads = texts[0].split()[1:]
    if any(text.split()[1:] != [contexts, leads] for text in texts):
        return ""
    order = list(dict.fromkeys(places))
    spans = len(order) > 1
    if spans and (leads != "1" or contexts != "1" or len(order) == len(places)):
        return ""
    return " ".join(str(order.index(place)) for place in places)


def _agree(store, rank, world, stage, mine, judge=_same):
    """Rank 0's answer to the texts of all ranks; all get the same one. Empty if a rank has no text, or does not come: the first
    answer in the store counts for all, and only rank 0 can give another one than "no"."""
    store.set(f"{stage} {rank}", mine or "-")
    verdict, answer = f"{stage} verdict", ""
    try:
        if rank == 0:
            others = [f"{stage} {other}" for other in range(1, world)]
            store.wait(others, _PATIENCE)
            texts = [mine, *(store.get(other).decode() for other in others)]
            if mine and "-" not in texts:
                answer = judge(texts)
        else:
            store.wait([verdict], _PATIENCE)
    except RuntimeError:  # some rank does not come
        pass
    given = store.compare_set(verdict, "", answer or "no").decode()
    return "" if given == "no" else given


def _leaders(store, node, nodes):
    """gloo's process group of the first ranks of all nodes; it has the layouts that the core expects."""
    from torch.distributed import ProcessGroupGloo

    core.leaders_watch()
    try:
        group = ProcessGroupGloo(store, node, nodes, timedelta(milliseconds=_TIMEOUT_MS))
        core.layout_begin()
        try:
            core.layout_expect(3, None, None, 0, _TIMEOUT_MS, node, nodes)
            group.barrier().wait()
        finally:
            held = core.layout_end()
        if not held:
            raise RuntimeError("the leaders' process group does not look as expected")
        return group
    finally:
        core.leaders_unwatch()


def _keep(leaders):
    """The core uses the leaders' group on threads that end with the process group above it, perhaps after Python has cleared its
    modules. So an extra reference, which no object holds, keeps it until the core is done with it."""
    for key in [key for key in _kept if not core.across_bound(key)]:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(_kept.pop(key)))
    if leaders is not None:
        _kept[id(leaders)] = leaders
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(leaders))


class Making:
    """A process group that is being made, on the thread that watches its contexts."""

    def __init__(self, given):
        self.given = given
        self.able = _layouts_hold()
        core.contexts_watch()

    def made(self):
        """On every rank of the group, when it is made."""
        contexts = core.contexts_count()
        try:
            if contexts:  # else no rank of this group, or a group of another backend
                self._bind(contexts)
        finally:
            core.contexts_unwatch()

    def _bind(self, contexts):
        rank, world = int(self.given["group_rank"]), int(self.given["group_size"])
        if world < 2:
            return
        from torch.distributed import PrefixStore

        store = PrefixStore(f"castor {self.given['group_name']}", self.given["store"])
        # The store may have seen a group of this name before.
        store = PrefixStore(str((store.add("entered", 1) - 1) // world), store)
        place = _place() if self.able and _threads(self.given) * contexts <= 2 * _THREADS else ""
        if rank == 0:
            store.set("name", secrets.token_hex(16))
        places = _agree(store, rank, world, "place", place and f"{place} {contexts} {int(_leads)}", _nodes_of)
        if not places:
            return
        nodes = [int(node) for node in places.split()]
        here = [peer for peer in range(world) if nodes[peer] == nodes[rank]]
        node, leaders = ctypes.c_void_p(), None
        try:
            if len(here) > 1:
                name = store.get("name") + b" %d" % nodes[rank]
                core.node_open(name, here.index(rank), len(here), _PATIENCE.total_seconds(), ctypes.byref(node))
            if max(nodes) and rank == here[0]:
                leaders = _leaders(PrefixStore("leaders", store), nodes[rank], max(nodes) + 1)
            opened = "open"
        except (core.Error, RuntimeError) as error:
            opened = ""
            core.log(1, f"gloo's collectives stay as they are in a process group: {error}".encode())
        if not _agree(store, rank, world, "memory", opened):
            if node:
                core.node_leave(node)
        elif max(nodes):
            core.node_bind_across(node, rank, (ctypes.c_int32 * world)(*nodes), world, id(leaders) if leaders else None)
            _keep(leaders)
        else:
            core.node_bind(node)

    def failed(self):
        core.contexts_unwatch()


def _threads(given):
    options = given.get("backend_options", given.get("pg_options"))
    return getattr(options, "_threads", _THREADS)


def making(given):
    """The Making of a process group; None: nothing in it will be replaced."""
    return Making(given) if wanted() and "torch.distributed" in sys.modules else None
