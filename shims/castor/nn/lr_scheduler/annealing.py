"""Rates that fall to an end over total_steps, at once, after a warm-up or after a flat stretch.

t is the number of step() calls so far. Where a warm-up or a flat stretch takes all of total_steps, the fall takes one step after it."""
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from .after import DelayerScheduler, WarmupDelayerScheduler, WarmupScheduler


def _rest(total_steps, first_steps=0):
    """The steps of the fall. ValueError: the numbers of steps do not fit."""
    if not total_steps > 0:
        raise ValueError(f"castor: total_steps is {total_steps}: expected a number above 0")
    if not 0 <= first_steps <= total_steps:
        raise ValueError(f"castor: warmup_steps is {first_steps}: expected a number from 0 to total_steps, {total_steps}")
    return max(total_steps - first_steps, 1)


def _after(last_epoch, first_steps):
    """The last_epoch of a scheduler that begins after `first_steps`."""
    return max(last_epoch - first_steps, -1)


def _flat(steps, pct_start):
    if not 0.0 <= pct_start <= 1.0:
        raise ValueError(f"castor: pct_start is {pct_start}: expected a number from 0 to 1")
    return int(steps * pct_start)


class LinearWarmupLR(LRScheduler):
    """Rises linearly to the rate, then falls linearly to 0: (t + 1) / (warmup_steps + 1) of it at t < warmup_steps, then
    (total_steps - t) / (total_steps - warmup_steps), and 0 after total_steps."""

    def __init__(self, optimizer, total_steps, warmup_steps=0, last_epoch=-1):
        _rest(total_steps, warmup_steps)
        self.warmup_steps, self.total_steps = warmup_steps, total_steps
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        t = self.last_epoch
        if t < self.warmup_steps:
            factor = (t + 1) / (self.warmup_steps + 1)
        else:
            factor = max(self.total_steps - t, 0) / _rest(self.total_steps, self.warmup_steps)
        return [factor * lr for lr in self.base_lrs]


class CosineAnnealingLR(lr_scheduler.CosineAnnealingLR):
    """Falls along half a cosine to eta_min (torch.optim.lr_scheduler.CosineAnnealingLR with T_max=total_steps)."""

    def __init__(self, optimizer, total_steps, eta_min=0, last_epoch=-1):
        super().__init__(optimizer, _rest(total_steps), eta_min=eta_min, last_epoch=last_epoch)


class CosineAnnealingWarmupLR(WarmupScheduler):
    """A linear warm-up, then CosineAnnealingLR over the other steps."""

    def __init__(self, optimizer, total_steps, warmup_steps=0, eta_min=0.0, last_epoch=-1):
        fall = lr_scheduler.CosineAnnealingLR(optimizer, _rest(total_steps, warmup_steps), eta_min, _after(last_epoch, warmup_steps))
        super().__init__(optimizer, warmup_steps, fall, last_epoch)


class FlatAnnealingLR(DelayerScheduler):
    """The rate itself for pct_start of total_steps, then CosineAnnealingLR to 0."""

    def __init__(self, optimizer, total_steps, pct_start=0.72, last_epoch=-1):
        _rest(total_steps)
        flat = _flat(total_steps, pct_start)
        fall = lr_scheduler.CosineAnnealingLR(optimizer, _rest(total_steps, flat), last_epoch=_after(last_epoch, flat))
        super().__init__(optimizer, flat, fall, last_epoch)


class FlatAnnealingWarmupLR(WarmupDelayerScheduler):
    """A linear warm-up, the rate itself for pct_start of the other steps, then CosineAnnealingLR to eta_min."""

    def __init__(self, optimizer, total_steps, warmup_steps=0, pct_start=0.72, eta_min=0, last_epoch=-1):
        _rest(total_steps, warmup_steps)
        flat = _flat(total_steps - warmup_steps, pct_start)
        first = warmup_steps + flat
        fall = lr_scheduler.CosineAnnealingLR(optimizer, _rest(total_steps, first), eta_min, _after(last_epoch, first))
        super().__init__(optimizer, warmup_steps, flat, fall, last_epoch)


class PolynomialLR(LRScheduler):
    """(lr - end_lr) * (1 - t / total_steps) ** power + end_lr, and end_lr after total_steps."""

    def __init__(self, optimizer, total_steps, end_lr=0.0001, power=1.0, last_epoch=-1):
        if end_lr < 0:
            raise ValueError(f"castor: end_lr is {end_lr}: expected a number of 0 or more")
        self.total_steps, self.end_lr, self.power = _rest(total_steps), end_lr, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        return self._get_closed_form_lr()

    def _get_closed_form_lr(self):
        left = (1 - min(self.last_epoch, self.total_steps) / self.total_steps) ** self.power
        return [(lr - self.end_lr) * left + self.end_lr for lr in self.base_lrs]


class PolynomialWarmupLR(WarmupScheduler):
    """A linear warm-up, then PolynomialLR over the other steps."""

    def __init__(self, optimizer, total_steps, warmup_steps=0, end_lr=0.0001, power=1.0, last_epoch=-1):
        fall = PolynomialLR(optimizer, _rest(total_steps, warmup_steps), end_lr, power, _after(last_epoch, warmup_steps))
        super().__init__(optimizer, warmup_steps, fall, last_epoch)


class MultiStepLR(lr_scheduler.MultiStepLR):
    """Multiplies the rate by gamma at each of the milestones. total_steps has no effect: every scheduler here takes it."""

    def __init__(self, optimizer, total_steps, milestones=None, gamma=0.1, last_epoch=-1):
        super().__init__(optimizer, _milestones(milestones), gamma=gamma, last_epoch=last_epoch)


class MultiStepWarmupLR(WarmupScheduler):
    """A linear warm-up, then the rate times gamma at each milestone. Milestones count all steps; those in the warm-up have no effect."""

    def __init__(self, optimizer, total_steps, warmup_steps=0, milestones=None, gamma=0.1, last_epoch=-1):
        _rest(total_steps, warmup_steps)
        later = [milestone - warmup_steps for milestone in _milestones(milestones) if milestone >= warmup_steps]
        fall = lr_scheduler.MultiStepLR(optimizer, later, gamma=gamma, last_epoch=_after(last_epoch, warmup_steps))
        super().__init__(optimizer, warmup_steps, fall, last_epoch)


def _milestones(milestones):
    if not milestones:
        raise ValueError("castor: milestones are missing: expected a list of steps at which the rate falls")
    return list(milestones)
