"""Schedulers of torch.optim with Colossal-AI's arguments: all take `total_steps`, which only OneCycleLR needs."""
from torch.optim import lr_scheduler


class LambdaLR(lr_scheduler.LambdaLR):
    """The first rate times lr_lambda(t)."""

    def __init__(self, optimizer, total_steps, lr_lambda=None, last_epoch=-1):
        super().__init__(optimizer, lr_lambda, last_epoch=last_epoch)


class MultiplicativeLR(lr_scheduler.MultiplicativeLR):
    """Multiplies the rate by lr_lambda(t) at each step."""

    def __init__(self, optimizer, total_steps, lr_lambda=None, last_epoch=-1):
        super().__init__(optimizer, lr_lambda, last_epoch=last_epoch)


class StepLR(lr_scheduler.StepLR):
    """Multiplies the rate by gamma after each step_size steps."""

    def __init__(self, optimizer, total_steps, step_size=1, gamma=0.1, last_epoch=-1):
        super().__init__(optimizer, step_size, gamma=gamma, last_epoch=last_epoch)


class ExponentialLR(lr_scheduler.ExponentialLR):
    """Multiplies the rate by gamma at each step."""

    def __init__(self, optimizer, total_steps, gamma=1.0, last_epoch=-1):
        super().__init__(optimizer, gamma, last_epoch=last_epoch)


class OneCycleLR(lr_scheduler.OneCycleLR):
    """torch.optim.lr_scheduler.OneCycleLR whose max_lr is the optimizer's rate. `more`: its epochs, steps_per_epoch and three_phase."""

    def __init__(self, optimizer, total_steps, pct_start=0.3, anneal_strategy="cos", cycle_momentum=True, base_momentum=0.85,
                 max_momentum=0.95, div_factor=25.0, final_div_factor=10000.0, last_epoch=-1, **more):
        rates = [group["lr"] if last_epoch == -1 else group["max_lr"] for group in optimizer.param_groups]
        super().__init__(optimizer, rates, total_steps=total_steps, pct_start=pct_start, anneal_strategy=anneal_strategy,
                         cycle_momentum=cycle_momentum, base_momentum=base_momentum, max_momentum=max_momentum, div_factor=div_factor,
                         final_div_factor=final_div_factor, last_epoch=last_epoch, **more)
