"""All ranks of a single-process script on several nodes. Its script has no process group: they meet where the launcher's variables say
(CASTOR_MEETING, interpose/forking/joining.c)."""
import datetime

import torch
import torch.distributed as dist

from .. import core
from ..common import store
from . import grouping, own_groups, restarts
from .control import Control


class Whole(Control):
    """As a store's group (common/store.py), by messages.

    local   the store's group of this rank's node
    secret  by which the ranks of this node find each other"""

    union = store.Group.union

    def __init__(self, rank, world):
        self.ranks, self.rank, self.world = list(range(world)), rank, world
        meeting = self.meeting = _meeting_place(rank, world)
        self.messages = own_groups.gloo(meeting, "castor-all", rank, self.ranks)
        self.local, self.nodes, self.secret = grouping.group_of_all(
            self.messages, "nproc", rank, lambda lane: own_groups.gloo(meeting, f"castor-lane-{lane[0]}", rank, lane))

    @property
    def handle(self):
        return self.local.handle

    def failure(self):
        return self.local.failure()

    def broadcast(self, data, what):
        """Rank 0's bytes, on every rank; all pass the same length."""
        self.gather([len(data)], what)  # all are here
        tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self.guarded(what, dist.broadcast, tensor, group_src=0)
        return bytes(tensor.tolist())

    def gather_bytes(self, data, out, what):
        """Each rank's bytes, as many on all, into as many rows of `out`."""
        self.gather([len(data)], what)
        self.guarded(what, dist.all_gather_into_tensor, out.view(-1), data)


def _meeting_place(rank, world):
    """A store of PyTorch's: torchrun's own, or one that rank 0 keeps."""
    host, port, kept, attempt = core.options.meeting.split()
    timeout = datetime.timedelta(seconds=core.options.timeout)
    meeting = dist.TCPStore(host, int(port), None, kept == "by-rank-0" and rank == 0, timeout, wait_for_workers=False)
    return restarts.meeting(meeting, rank, world, core.options.timeout) if kept == "by-torchrun" else dist.PrefixStore(f"castor attempt {attempt}", meeting)
