"""The exchanges between nodes while a backward runs."""
import ctypes

from .. import core


class Schedule:
    """The exchanges of a lane's owners while a backward runs: the sums of the parameters that the last one used, from the last
    parameter to the first, in units, one after the other. A unit starts when its sums are complete on this node. As long as
    gradients are made, a rank never waits for another node: the other ranks of its node wait for its gradients, and sums that
    another node waits for would not become complete.

    chosen  the entries that this rank exchanges
    """

    def __init__(self, across, entries, used):
        self.across, self.entries, self.next = across, entries, 0
        self.used = (ctypes.c_uint8 * len(entries))(*used)
        self.works = self.work = None  # of the unit before `next`, which is under way, and the work that it waits for
        self.handles = core.pointers([e.handle for e in entries])
        unit, waits = (ctypes.c_int32 * len(entries))(), (ctypes.c_uint32 * len(entries))()
        members = [[] for _ in range(core.node_units(self.handles, len(entries), self.used, unit, waits))]
        for i, number in enumerate(unit):
            if number >= 0:
                members[number].append(i)
        self.chosen = {entries[i] for i, number in enumerate(unit) if number >= 0}
        # (sums that must be complete, plan of the exchange, entries)
        self.units = [(end, across.plan(entries, its), [entries[i] for i in its]) for end, its in zip(waits, members)]

    def holds(self, entries, used):
        return self.entries is entries and bytes(self.used) == bytes(used)

    def fits(self, entries):
        """Whether all that it exchanges is among these. Of models that share parameters the first one in a pass has them."""
        return self.entries is entries or self.chosen.issubset(entries)

    def begin(self):
        self.next = 0

    def go_on(self):
        if self.works is not None or self.next < len(self.units):
            complete = core.sums_complete(self.handles, len(self.handles), self.used)
            self.across.guarded(self._exchange, lambda end: end <= complete, lambda work: work.is_completed())

    def finish(self):
        """Exchanges the rest, when the sums are complete."""
        self.across.guarded(self._exchange, lambda end: True, lambda work: True)

    def _exchange(self, may_begin, may_wait):
        while self.works is not None or self.next < len(self.units) and may_begin(self.units[self.next][0]):
            if self.works is None:
                self.works = self.across.exchange(self.units[self.next][1])
                self.next += 1
                self.work = next(self.works, None)
            while self.work is not None:
                if not may_wait(self.work):
                    return
                self.work.wait()
                self.work = next(self.works, None)
            self.works = None
            self.across.drop(self.units[self.next - 1][2], sums=True)
