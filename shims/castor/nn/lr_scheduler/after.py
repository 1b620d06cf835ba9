"""Schedulers that hold or raise the rate first, and then leave it to another scheduler."""
import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau


class TwoStageScheduler(LRScheduler):
    """`warmup_epochs` steps at (t + 1) / warmup_epochs of the rate, `delay_epochs` steps at the rate itself, then `after_scheduler`, whose step
    0 follows. Subclasses set the two numbers before they call this constructor."""

    warmup_epochs = delay_epochs = 0

    def __init__(self, optimizer, after_scheduler, last_epoch=-1):
        if isinstance(after_scheduler, ReduceLROnPlateau) or not isinstance(after_scheduler, LRScheduler):
            raise TypeError(f"castor: after_scheduler is a {type(after_scheduler).__name__}: expected a scheduler whose step() takes no metric")
        for name in ("warmup_epochs", "delay_epochs"):
            if getattr(self, name) < 0:
                raise ValueError(f"castor: {name} is {getattr(self, name)}: expected a number of 0 or more")
        self.after_scheduler = after_scheduler
        self.finished = False  # the first stage
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        if self.last_epoch < self.warmup_epochs:
            return [(self.last_epoch + 1) / self.warmup_epochs * lr for lr in self.base_lrs]
        if self.last_epoch < self.warmup_epochs + self.delay_epochs:
            return list(self.base_lrs)
        return self._first_lr_after()

    def _first_lr_after(self):
        self.finished = True
        after, late = self.after_scheduler, self.last_epoch - self.warmup_epochs - self.delay_epochs
        if after.last_epoch > 0:  # it was made to go on in its own stage
            return after.get_last_lr()
        after.base_lrs = list(self.base_lrs)
        for group, lr in zip(self.optimizer.param_groups, self.base_lrs):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
        if late > 0:
            after.step(late)
            return after.get_last_lr()
        # Its rate at step 0, as in its constructor: from the groups' rates, which are the base ones now.
        after._get_lr_called_within_step = after._is_initial = True
        try:
            return after.get_lr()
        finally:
            after._get_lr_called_within_step = after._is_initial = False

    def step(self, epoch=None):
        if not self.finished:
            return super().step(epoch)
        start = self.warmup_epochs + self.delay_epochs
        self.after_scheduler.step(*(() if epoch is None else (epoch - start,)))
        self.last_epoch = self.after_scheduler.last_epoch + start
        self._last_lr = self.after_scheduler.get_last_lr()

    def state_dict(self):
        state = super().state_dict()
        after = state.pop("after_scheduler")
        return {**state, "after_scheduler_type": type(after).__name__, "after_scheduler_dict": after.state_dict()}

    def load_state_dict(self, state_dict):
        """ValueError: the state is of another class, or its after_scheduler is."""
        state = dict(state_dict)
        kind, of_after = state.pop("after_scheduler_type", None), state.pop("after_scheduler_dict", None)
        expected = type(self.after_scheduler).__name__
        if of_after is None or kind != expected:
            raise ValueError(f"castor: {type(self).__name__} needs the state of a scheduler that goes on with {expected}, and this one "
                             f"{'has none' if of_after is None else f'goes on with {kind}'}")
        self.after_scheduler.load_state_dict(of_after)
        super().load_state_dict(state)


class DelayerScheduler(TwoStageScheduler):
    """The rate itself for `delay_epochs` steps, then `after_scheduler`."""

    def __init__(self, optimizer, delay_epochs, after_scheduler, last_epoch=-1):
        self.delay_epochs = delay_epochs
        super().__init__(optimizer, after_scheduler, last_epoch)


class WarmupScheduler(TwoStageScheduler):
    """(t + 1) / warmup_epochs of the rate for `warmup_epochs` steps, then `after_scheduler`."""

    def __init__(self, optimizer, warmup_epochs, after_scheduler, last_epoch=-1):
        self.warmup_epochs = int(warmup_epochs)
        super().__init__(optimizer, after_scheduler, last_epoch)


class WarmupDelayerScheduler(TwoStageScheduler):
    """`warmup_epochs` steps as WarmupScheduler, `delay_epochs` steps as DelayerScheduler, then `after_scheduler`."""

    def __init__(self, optimizer, warmup_epochs, delay_epochs, after_scheduler, last_epoch=-1):
        self.warmup_epochs, self.delay_epochs = warmup_epochs, delay_epochs
        super().__init__(optimizer, after_scheduler, last_epoch)
