"""CPUAdam, HybridAdam and FusedAdam: torch.optim.Adam and AdamW with Colossal-AI's arguments.

PyTorch has the arithmetic, and under a plugin Castor's kernels (docs/optimizers.md): the results have the bits of torch.optim.AdamW
(adamw_mode) or Adam with the same numbers, and their state dicts go into each other."""
import math
import warnings

import torch

from ...agent import core
from ...agent.common import separable
from ._base import Checked, SetGradNone


class _Adam(Checked, torch.optim.Adam):
    def __init__(self, params, lr, bias_correction, betas, eps, weight_decay, adamw_mode, amsgrad=False):
        for key, value in (("lr", lr), ("betas", betas), ("eps", eps), ("weight_decay", weight_decay)):
            self._check(key, value)
        super().__init__(params, lr=lr, betas=tuple(map(float, betas)), eps=eps, weight_decay=weight_decay, amsgrad=amsgrad,
                         decoupled_weight_decay=bool(adamw_mode))
        self.defaults["bias_correction"] = bool(bias_correction)
        for group in self.param_groups:
            group.setdefault("bias_correction", bool(bias_correction))

    @property
    def adamw_mode(self):
        """Whether weight decay is decoupled (AdamW)."""
        return self.defaults["decoupled_weight_decay"]

    def __setstate__(self, state):
        """A state dict of another optimizer says nothing of these."""
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("bias_correction", self.defaults.get("bias_correction", True))
            group["decoupled_weight_decay"] = self.adamw_mode

    def _init_group(self, group, params_with_grad, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps):
        """Without bias correction the arithmetic is that of a step so late that the corrections are 1."""
        result = super()._init_group(group, params_with_grad, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps)
        if not group["bias_correction"]:
            for step in state_steps:
                step += 1
            state_steps[:] = [torch.full_like(step, math.inf) for step in state_steps]
        return result


@separable.declare
class CPUAdam(_Adam):
    """Adam (Colossal-AI: colossalai.nn.optimizer.CPUAdam), of parameters on any device.

    Args:
        params: parameters, or parameter groups; `model_params` is the same.
        lr, betas, eps, weight_decay: as torch.optim.AdamW's.
        bias_correction: False: the means are taken as they are, without the division by 1 - beta ** step.
        adamw_mode: the weight decay is decoupled (AdamW); else it is added to the gradients (Adam).
        nvme_offload_fraction, nvme_offload_dir: what CASTOR_OFFLOAD_OPTIM_FRAC and CASTOR_OFFLOAD_DIR say of the job. They are read
            when it starts, so a value here has no effect; a warning says what to set, unless it is set.

    ValueError: a number is out of its range."""

    def __init__(self, params=None, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, adamw_mode=True,
                 nvme_offload_fraction=0.0, nvme_offload_dir=None, *, model_params=None):
        if (params is None) == (model_params is None):
            raise TypeError(f"castor: {type(self).__name__} takes the model's parameters, once: as the first argument, params= or model_params=")
        _check_offload(type(self).__name__, nvme_offload_fraction, nvme_offload_dir)
        super().__init__(model_params if params is None else params, lr, bias_correction, betas, eps, weight_decay, adamw_mode)


@separable.declare
class HybridAdam(CPUAdam):
    """CPUAdam under the name that Colossal-AI's scripts use for parameters that lie on the CPU and on devices."""


@separable.declare
class FusedAdam(SetGradNone, _Adam):
    """Adam (Colossal-AI: colossalai.nn.optimizer.FusedAdam). As HybridAdam, with

    amsgrad: as torch.optim.AdamW's.
    set_grad_none: what zero_grad() does when it is not told: gradients become None, or zero."""

    def __init__(self, params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8, adamw_mode=True, weight_decay=0.0,
                 amsgrad=False, set_grad_none=True):
        super().__init__(params, lr, bias_correction, betas, eps, weight_decay, adamw_mode, amsgrad)
        self.set_grad_none = bool(set_grad_none)


def _check_offload(name, fraction, folder):
    if not isinstance(fraction, (int, float)) or not 0.0 <= fraction <= 1.0:
        raise ValueError(f"castor: {name}: nvme_offload_fraction is {fraction!r}: expected a number from 0 to 1")
    if not fraction:
        return
    options = core.options
    wanted = f"CASTOR_OFFLOAD_OPTIM_FRAC={fraction:g}" + (f" CASTOR_OFFLOAD_DIR={folder}" if folder else "")
    if getattr(options, "offload_optim_frac", 0.0) == fraction and (not folder or getattr(options, "offload_dir", "") == str(folder)):
        return
    text = f"{name}: nvme_offload_fraction has no effect once the job runs: start it with {wanted}"
    if hasattr(core, "log"):
        core.log(1, text.encode())
    else:
        warnings.warn(f"castor: {text}, under castor run", stacklevel=3)
