"""Collectives of gloo go through the node's memory, for process groups whose ranks are all on this node.

Nothing is replaced unless gloo's objects look as the core expects them (a process group of one rank shows that, once
per process) and all ranks of a group agree, when they make it, over the store that they make it with."""
import ctypes
import hashlib
import secrets
import sys
from datetime import timedelta

from . import core

_PATIENCE = timedelta(seconds=30)  # for ranks that make the same group
_TIMEOUT_MS = 54321  # an odd one, to be found again
_THREADS = 2  # of a process group of gloo

_holds = None


def wanted():
    return bool(core.plugin_engine()) and core.option_text("CASTOR_NODE_COLLECTIVES") == "auto"


def _layouts_hold():
    """Whether gloo's objects look as the core expects them."""
    global _holds
    if _holds is None:
        try:
            _holds = _test()
        except Exception as error:  # another version of PyTorch: anything may be missing
            _holds = False
            core.log(2, f"gloo's collectives stay as they are: the test of its layouts ended with {error!r}".encode())
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
                    core.layout_expect(call, *places, numel, _TIMEOUT_MS)

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
            core.layout_expect(3, None, None, 0, _TIMEOUT_MS)
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
    """What processes must have in common to share memory; a hash, since others can read the store."""
    job = core.option_text("CASTOR_JOB")
    return hashlib.sha256(f"{job} {core.node_identity()}".encode()).hexdigest() if job else ""


def _agree(store, rank, world, stage, mine):
    """Whether all ranks bring the same text, which is not empty: all get the same answer. Who comes first with an answer
    decides for all; only rank 0 can say yes, when it has seen all texts."""
    store.set(f"{stage} {rank}", mine or "-")
    verdict, answer = f"{stage} verdict", "no"
    try:
        if rank == 0:
            others = [f"{stage} {other}" for other in range(1, world)]
            store.wait(others, _PATIENCE)
            if mine and all(store.get(other).decode() == mine for other in others):
                answer = "yes"
        else:
            store.wait([verdict], _PATIENCE)
    except RuntimeError:  # somebody does not come
        pass
    return store.compare_set(verdict, "", answer).decode() == "yes"


class Making:
    """A process group in the making, by the thread that watches its contexts."""

    def __init__(self, given):
        self.given = given
        self.able = _layouts_hold()
        core.contexts_watch()

    def made(self):
        """On every rank of the group, when it is made."""
        contexts = core.contexts_count()
        core.contexts_unwatch()
        if contexts == 0:  # no rank of this group, or a group of another backend
            return
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
        if not _agree(store, rank, world, "place", place and f"{place} {contexts}"):
            return
        node = ctypes.c_void_p()
        try:
            core.node_open(store.get("name"), rank, world, _PATIENCE.total_seconds(), ctypes.byref(node))
        except core.Error as error:
            core.log(1, f"gloo's collectives stay as they are in a process group: {error}".encode())
        if _agree(store, rank, world, "memory", "open" if node else ""):
            core.node_bind(node)
        elif node:
            core.node_leave(node)

    def failed(self):
        core.contexts_unwatch()


def _threads(given):
    options = given.get("backend_options", given.get("pg_options"))
    return getattr(options, "_threads", _THREADS)


def making(given):
    """None: nothing is to be replaced in the process group that is to be made."""
    return Making(given) if wanted() and "torch.distributed" in sys.modules else None
