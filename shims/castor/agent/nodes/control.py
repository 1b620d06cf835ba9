"""What the ranks of several nodes tell each other about data that their store does not have: as the ranks of one node do by a store's group
(common/store.py), with the same functions, by messages."""
import datetime
import functools
import struct
import zlib

import torch
import torch.distributed as dist

from .. import core

WORDS = 64  # of a message; longer ones follow it
_HEADER = struct.Struct("<4Q")
_CONSENSUS = 1
_TEXT_BYTES = 160


class Control:
    """The ranks of a process group that spans nodes. All functions are called by all of them, in the same order; every_rank_can() finds where they are not.

    ranks  of the whole job
    nodes  the node of each of them"""

    def __init__(self, ranks, nodes):
        self.ranks, self.nodes, self.rank, self.world = ranks, nodes, ranks.index(dist.get_rank()), len(ranks)
        patience = datetime.timedelta(seconds=core.options.timeout)
        self.messages = dist.new_group(ranks, timeout=patience, backend="gloo", use_local_synchronization=True)

    @functools.cached_property
    def meeting(self):
        """A store of PyTorch's, in which these ranks meet."""
        return dist.PrefixStore(f"castor {self.messages.group_name}", dist.distributed_c10d._get_default_store())

    def guarded(self, what, function, *arguments, **named):
        """Calls a collective of these ranks."""
        try:
            function(*arguments, group=self.messages, **named)
        except RuntimeError as error:
            raise core.GroupError(f"castor: {what}: a rank of another node, or of this one, has ended or cannot be reached; what it says tells why "
                                  f"({core.shortened(str(error).strip().splitlines()[0], 300)})") from error

    def _exchange(self, mine, what):
        """Each rank's tensor of as many words."""
        every = [torch.empty_like(mine) for _ in self.ranks]
        self.guarded(what, dist.all_gather, every, mine)
        return every

    def _meet(self, kind, key, values, what):
        """The values of each rank; None: some are elsewhere."""
        digest = zlib.crc32(what.encode())
        header = torch.frombuffer(bytearray(_HEADER.pack(kind, digest if kind != _CONSENSUS else 0, key, len(values))), dtype=torch.float64)
        first = torch.zeros(WORDS, dtype=torch.float64, device="cpu")
        first[:4], here = header, min(len(values), WORDS - 4)
        first[4:4 + here] = torch.tensor(values[:here], dtype=torch.float64, device="cpu")
        every = self._exchange(first, what)
        headers = [_HEADER.unpack(bytes(each[:4].view(torch.uint8).tolist())) for each in every]
        if any(there[:2] != headers[0][:2] for there in headers):
            if not any(there[0] == _CONSENSUS for there in headers):
                self._part(what)
            return None
        if any(there != headers[0] for there in headers):
            if kind == _CONSENSUS:
                return None
            self._part(f"{what}, with {len(values)} numbers")
        found = [each[4:4 + here].tolist() for each in every]
        if len(values) > here:
            rest = self._exchange(torch.tensor(values[here:], dtype=torch.float64, device="cpu"), what)
            found = [each + more.tolist() for each, more in zip(found, rest)]
        return found

    def _part(self, what):
        texts = self._exchange(torch.frombuffer(bytearray(what.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES)), dtype=torch.uint8), what)
        texts = [bytes(text.tolist()).decode(errors="replace").strip() for text in texts]
        other = next((number for number, text in enumerate(texts) if text != texts[0]), 0)
        raise core.PartedError(f"castor: rank {self.ranks[0]} is at {texts[0]} and rank {self.ranks[other]} is at {texts[other]}: the script decided differently on "
                               "them. All ranks must make the same calls")

    def gather(self, values, what):
        """A list of numbers of each rank, in rank order; all pass the same count."""
        found = None
        while found is None:  # others have asked every_rank_can(), and come here next
            found = self._meet(0, 0, values, what)
        return found

    def barrier(self, what):
        self.gather([], what)

    def begin_step(self, agreed, said=()):
        """Begins a step. `agreed`: (label, number) of each value that must be equal on all ranks. Returns the `said` of each rank, in rank order."""
        what = "the begin of an optimizer step"
        every = self.gather([*(value for _, value in agreed), *said], what)
        for number, (label, _) in enumerate(agreed):
            for rank, values in zip(self.ranks, every):
                if struct.pack("<d", values[number]) != struct.pack("<d", every[0][number]):
                    raise core.GroupError(f"castor: the ranks disagree at {what}: {label} is {every[0][number]:g} on rank {self.ranks[0]} and {values[number]:g} on rank "
                                          f"{rank}. Set the same on every rank")
        return [values[len(agreed):] for values in every]

    def every_rank_can(self, key, able):
        """Whether every rank called with this key, and was able."""
        found = self._meet(_CONSENSUS, key, [float(able)], "an operation on all gradients")
        return found is not None and all(flag for flag, in found)
