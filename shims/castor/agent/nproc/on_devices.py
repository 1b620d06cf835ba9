"""The gradients of a single-process script's parameters on this rank's device, which are summed over the ranks (device_ranks/buckets.py).

Parameters come with optimizers, one after another. Those that come together are divided into buckets together; of these the first have their
sums made while a backward runs. The others wait for its end, when the ranks have told each other which of them some rank has reached: so all
ranks make the same sums in the same order, though each reaches the parameters in its own."""
import torch

from .. import core
from ..common import tensors
from ..device_ranks import alike, buckets, entries, own_group, sums


class _Together(buckets.Synchronizer):
    """Of parameters that came together."""

    def __init__(self, group, parameters, job):
        super().__init__(group, parameters)
        self.job = job

    @property
    def lives(self):
        return any(part.parameter() is not None for part in self.parts)

    @property
    def has_changed(self):
        return any(p is not None and not part.fits(p) for p, part in ((part.parameter(), part) for part in self.parts))

    def refuse_second(self):
        self.job.synchronizer.refuse_second()

    def _begin(self):
        if self.broken:
            self.refuse_broken()
        self._open()

    def _put(self, part, used):
        if not self.job.share:
            self._clear_of_nothing(part.parameter())
        super()._put(part, used)

    @staticmethod
    def _clear_of_nothing(p):
        """The loss of a part without targets is 0 / 0, with weight 0."""
        grad = None if p is None else sums.grad_of(p)
        if grad is not None:
            grad.detach().nan_to_num_(0.0, 0.0, 0.0)

    def finish(self, reached):
        """`reached`: some rank has a gradient."""
        if reached and not self.begun:
            self._begin()
        if reached:
            self._end()
        self.expecting = False

    def break_off(self, error):
        self._raised(error)


class Sums:
    """Of all parameters on the device."""

    def __init__(self, job):
        self.job, self.device = job, None
        self.each = []  # _Together
        self.reached = self.lives = ()  # which of them some rank's backward has reached; of which some rank has a parameter

    def parameters(self):
        """Weak references."""
        return [part.parameter for together in self.each for part in together.parts]

    @property
    def count(self):
        return sum(len(together.parts) for together in self.each)

    def add(self, parameters):
        """On all ranks together."""
        if self.job.mode == "loader":
            raise core.Error("castor: CASTOR_BATCH=loader does not serve a script on devices, where no audit can tell whether its batches may be "
                             "split: leave it out")
        for p in parameters:
            self.device = self.device or p.device
            why = f"it is on {p.device}, and others are on {self.device}" if p.device != self.device else tensors.why_unsupported(p, "cuda")
            if why:
                raise core.Error(f"castor: a parameter of shape {tuple(p.shape)} cannot be shared: {why}. Run this script on one rank")
        group = own_group.group_of(self.job.group)
        if not alike.have_all(group, parameters):  # they were drawn from a seed of each rank's own
            with torch.no_grad():
                group.broadcast([(entries.flat(p), 0) for p in parameters], self.device)
        self.each.append(_Together(group, parameters, self.job))

    def renew(self):
        """Registers parameters that have another type or size now anew; their owners stay. On all ranks together."""
        for together in [together for together in self.each if together.has_changed]:
            together.remove_hooks()
            self.each.remove(together)
            living = [p for p in (part.parameter() for part in together.parts) if p is not None]
            self.each.append(_Together(together.group, living, self.job))

    def expect(self):
        """The next gradients are to be summed."""
        if self.job.sums_late and core.plugin_shards() > 1:
            self._free_last()
        for number, together in enumerate(self.each):
            together.delayed, together.late = number > 0, self.job.sums_late
            together.expect()

    def _free_last(self):
        """No rank reads the last sums any more, whose memory the next gradients can have: these are all there before any is summed. On all ranks together."""
        for together in self.each:
            together.bring()
        self.job.group.gather([], "the begin of a backward pass")
        for together in self.each:
            together.keep.begin()
            together.keep.release()

    def flags(self):
        """What this rank tells the others at the end of a backward."""
        return [together.begun for together in self.each] + [together.lives for together in self.each]

    def hear(self, flags):
        """What some rank has told."""
        self.reached, self.lives = flags[:len(self.each)], flags[len(self.each):]

    def finish(self):
        for together, by_some in zip(self.each, self.reached):
            together.finish(by_some)
        self.each = [together for together, by_some in zip(self.each, self.lives) if by_some]

    def break_off(self, error):
        for together in self.each:
            together.break_off(error)
