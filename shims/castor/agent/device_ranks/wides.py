"""Masters (CASTOR_PRECISION) that a parameter's owner alone keeps, where owners step: another rank reads one when the script looks at it.

What the script looks at it may write. So the owner copies what it shows the others before; and what another rank has got, or has loaded, stays there
until the next step, after which the owner's count. The tensors that the script holds then get the new values."""
import itertools
import weakref

import torch

from .. import core
from ..common import tensors
from ..device import homes
from ..precision import masters
from . import entries, kept

_FIRST = 1 << 30  # of the numbers of what a group keeps


class Masters:
    """Those of parameters that became 16 bits together. It lives as long as one of them.

    own     this rank's, as the others find them by their number
    copies  what the others read instead of them, since the script may write those
    away    weak references to those that others have, as this rank knows them"""

    def __init__(self, group, device):
        group.masters += 1
        self.shown, self.device, self.peers = kept.Shown(group, _FIRST | group.masters), device, kept.peers_of(group)
        self.own, self.copies, self.away = [], [], weakref.WeakSet()

    def show(self):
        kept.show(self.shown.name, self.shown.version, self.device, self.copies or self.own)

    @torch.no_grad()
    def preserve(self):
        """The script may write this rank's own."""
        if not self.copies and self.own:
            kept.hide(self.shown.name)
            with homes.born(homes.STATE, self.device.index):
                self.copies = [values.clone() for values in self.own]
            self.show()

    def hide(self):
        """Owners step, on all ranks together."""
        kept.hide(self.shown.name)

    def stepped(self):
        self.copies = []
        self.shown.version += 1
        self.show()
        for wide in list(self.away):
            wide.renew()

    def new(self, like):
        with homes.born(homes.STATE, self.device.index):
            return torch.empty_strided(*like, dtype=torch.float32, device=self.device)

    @torch.no_grad()
    def read(self, owner, number, values):
        there = torch.empty_strided(values.shape, values.stride(), dtype=values.dtype, device="cpu")
        kept.read(self.peers[owner], self.shown.name, self.shown.version, [(number, there)])
        values.copy_(there)


class _Own(masters.Wide):
    """Of a parameter that this rank owns."""

    def __init__(self, narrow, values, all_):
        super().__init__(narrow, values)
        self.all = all_

    def shown(self):
        self.all.preserve()
        return super().shown()

    def load(self, values):
        self.all.preserve()
        super().load(values)


class _Away(masters.Wide):
    """Of a parameter that another rank owns. number: of its values among that one's."""

    def __init__(self, narrow, like, all_, owner, number):
        super().__init__(narrow, None)
        self.like, self.all, self.owner, self.number = like, all_, owner, number
        all_.away.add(self)

    def shown(self):
        if self.tensor is None:
            values = self.all.new(self.like)
            self.all.read(self.owner, self.number, values)
            self.tensor = values
            self.seen()
        return super().shown()

    def load(self, values):
        if self.tensor is None:
            self.tensor = self.all.new(self.like)
        super().load(values)

    def renew(self):
        if self.tensor is not None and tensors.storage_users(self.tensor) > 1:
            _tell_of_held()
            self.all.read(self.owner, self.number, self.tensor)
        else:
            self.tensor = None
        self.seen()


_told_of_held = False


def _tell_of_held():
    global _told_of_held
    if not _told_of_held:
        _told_of_held = True
        core.log(2, b"the script keeps the tensors of a state_dict(), of which another rank has the float values: they are read after each step, since steps "
                    b"change them in place. Steps are faster if it drops them, or keeps a copy.deepcopy()")


def share(group, fresh):
    """Parameters that have got masters (adoption.adopt_masters) have owners now, who keep these alone. On all ranks together."""
    some = [(p, entry) for p, entry in ((p, entries.entry_of(p)) for p in fresh) if entry.group is group]
    if not some:
        return
    all_ = Masters(group, some[0][0].device)
    numbers = [itertools.count() for _ in range(group.world)]
    for p, entry in some:
        wide, number = masters.of(p), next(numbers[entry.owner])
        values = wide.tensor
        if entry.mine:
            all_.own.append(values)
            _Own(p, values, all_)
        else:
            _Away(p, (tuple(values.shape), values.stride()), all_, entry.owner, number)
    del wide, values
    if homes.available(all_.device.index):
        homes.release(homes.STATE, all_.device.index)
    all_.show()


def of(parameters):
    """All Masters that have some of these parameters'."""
    return {wide.all for wide in map(masters.of, parameters) if isinstance(wide, (_Own, _Away))}


def settle_written(parameters):
    """Takes up what the script has written into masters here."""
    for wide in filter(None, map(masters.of, parameters)):
        if wide.written():
            wide.shown()
