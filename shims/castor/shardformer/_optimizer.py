"""The optimizer of a hybrid-parallel model: float masters of 16-bit parameters, ZeRO over replicas, norms over all parts."""
import contextlib
from ctypes import byref

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from ..agent import core
from ..checkpoint_io import _ranks
from ..interface import OptimizerWrapper
from ._gradients import block, mean_over_replicas

__all__ = ["HybridParallelOptimizer"]

KEY = "castor_loss_scale"  # in a checkpoint, beside what PyTorch has there

# Classes that compute each element of a parameter by itself: of a divided one they step this rank's part.
_ELEMENTWISE = {("torch.optim", name) for name in ("SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")} | \
    {("castor", name) for name in ("HybridAdam", "CPUAdam", "FusedAdam", "FusedSGD")}


def is_elementwise(optimizer):
    kind = type(optimizer)
    return any(kind.__name__ == name and (kind.__module__ == module or kind.__module__.startswith(module + ".")) for module, name in _ELEMENTWISE)


def followed(held, value):
    """The float values behind `value`: those `held`, but where a script has written something else into `value`."""
    return torch.where(held.to(value.dtype) == value, held, value.to(held.dtype))


class HybridParallelOptimizer(OptimizerWrapper):
    """Wraps `optim`, whose parameters are those of a model before it was divided.

    Args:
        parameters: {the id of a parameter of `optim`: (its name, what this rank has instead)}; those missing are on other stages.
        groups: the job's ParallelGroups. common: the ids of this rank's parameters that all stages have.
        floats: {a 16-bit parameter: its float value}; None: no masters. scale: fields of castor_loss_scale; None: losses are not scaled. zero_stage: 0, 1 or 2.
        bucket, communication_dtype: of sums over replicas.

    `param_groups` holds masters: float tensors of this rank's part, which share a float parameter's memory. With ZeRO each replica has those of
    some whole parameters, steps them and sends the new values to the others; with stage 2 it alone keeps their gradients, too.

    `p.grad` of a 16-bit parameter is in 16 bits, under fp16 times the loss scale; the masters' gradients, which clipping and steps use, are float."""

    _running = []  # those whose backward passes run, the innermost one last

    def __init__(self, optim, parameters, groups, common, floats, scale, zero_stage, max_norm, bucket, communication_dtype):
        super().__init__(optim, max_norm)
        self._groups, self._bucket, self._dtype = groups, bucket, communication_dtype
        self._zero = zero_stage if groups.data_size > 1 else 0
        self._replica = groups.data_ranks.index(dist.get_rank())
        self._whole_rows = [[None if id(p) not in parameters else parameters[id(p)] for p in group["params"]] for group in optim.param_groups]
        self.named = {found[0]: found[1] for row in self._whole_rows for found in row if found is not None}
        self._working = list(dict.fromkeys(found[1] for row in self._whole_rows for found in row if found is not None))
        self._common = common
        self._owner = self._owners()
        local = is_elementwise(optim)
        if not local and groups.stages > 1 and not type(optim).__module__.startswith(("torch.optim", "castor.")):
            core.log(1, f"HybridParallelPlugin: {type(optim).__name__} sees one stage's parameters in each process; it must not compute over all of them".encode())
        if optim.state:
            raise ValueError("castor: the optimizer has states already: boost it before its first step, and load its checkpoint afterwards")
        self._masters = {p: self._master(p, floats, local, scale is not None) for p in self._working if self._owner[p] == self._replica or not self._zero}
        for group, row in zip(optim.param_groups, self._whole_rows):
            group["params"] = [self._masters[found[1]] for found in row if found is not None and found[1] in self._masters]
        self._sums = {}  # under stage 2: of the parameters that this replica steps
        self._dirty, self._syncs, self._unscaled, self._foreign = False, True, False, False
        for p in self._working:
            trains = p.requires_grad
            if p.is_floating_point():
                p.requires_grad_(True).register_post_accumulate_grad_hook(self._arrived)  # the script may unfreeze it
                p.requires_grad_(trains)
        self._scale = None
        if scale is not None:
            self._scale = core.LossScale()
            core.loss_scale_begin(byref(self._scale))
            for name, value in scale.items():
                setattr(self._scale, name, value)

    def _owners(self):
        """The replica that steps a parameter: the largest ones go first, each to the replica with the fewest elements."""
        loads, owner = [0] * self._groups.data_size, {}
        for p in sorted(self._working, key=lambda p: -block(p).numel()):
            owner[p] = loads.index(min(loads)) if self._zero else 0
            loads[owner[p]] += block(p).numel()
        return owner

    @staticmethod
    def _master(p, floats, local, scaled):
        """A tensor of its own where gradients differ from the parameter's, in type or by the loss scale."""
        value = p if floats is None else floats.get(p, p.float() if p.element_size() < 4 else p)
        if value is p and not scaled and (not local or not isinstance(p, DTensor)):
            return p
        value = value.detach()
        return torch.nn.Parameter(block(value) if local else value, requires_grad=p.requires_grad)

    def _arrived(self, p):
        if self._scale is not None and self not in self._running:
            if not self._running:
                raise RuntimeError("castor: under fp16 losses are scaled: call booster.backward(loss, optimizer) instead of loss.backward()")
            self._foreign = self._foreign or self._running[-1].loss_scale != self.loss_scale
        self._dirty = True
        self._unscaled = False

    # ---- gradients

    @property
    def loss_scale(self):
        return 1.0 if self._scale is None else self._scale.scale

    def scale_loss(self, loss):
        return loss if self._scale is None else loss * self._scale.scale

    def backward(self, loss, inputs=None, retain_graph=False, **kwargs):
        """Adds the gradients of `loss`, a scalar tensor, and averages them over replicas, but in no_sync()."""
        with self.scaled():
            super().backward(loss, inputs, retain_graph, **kwargs)
        self.synchronize()

    def backward_by_grad(self, tensor, grad, inputs=None, retain_graph=False):
        if self._scale is not None:
            grad = [one * self.loss_scale for one in grad] if isinstance(grad, (list, tuple)) else grad * self.loss_scale
        with self.scaled():
            super().backward_by_grad(tensor, grad, inputs, retain_graph)
        self.synchronize()

    @contextlib.contextmanager
    def scaled(self):
        """Backward passes inside are of losses with the loss scale."""
        self._norm = None
        self._running.append(self)
        try:
            yield
        finally:
            self._running.pop()

    @contextlib.contextmanager
    def no_sync(self):
        """Gradients are each replica's own; the first backward after it, or the step, averages them."""
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    @torch.no_grad()
    def synchronize(self, at_step=False):
        """Averages over replicas what has been added since the last time."""
        if self._groups.data_size == 1 or not (self._syncs or at_step) or not (self._dirty or at_step):
            return
        mean_over_replicas([p for p in self._working if p.requires_grad], self._groups.data_group, self._bucket, self._dtype)
        self._dirty = False
        if self._zero == 2:
            for p in self._working:
                if p.grad is not None and p in self._masters:
                    gradient = block(p.grad).to(block(self._masters[p]).dtype, copy=True)
                    self._sums[p] = gradient if p not in self._sums else self._sums[p].add_(gradient)
                p.grad = None

    def unscale_grad(self):
        """Makes the masters' gradients of the parameters': float, without the loss scale."""
        self._to_masters()

    @torch.no_grad()
    def _to_masters(self):
        if self._unscaled:
            return
        if self._foreign:
            raise RuntimeError("castor: the gradients are in part of another optimizer's loss, with another loss scale: call zero_grad() before the "
                               "backward of this optimizer's loss")
        self.synchronize(at_step=self._pending())
        for p, master in self._masters.items():
            gradient = self._sums.get(p) if self._zero == 2 else None if p.grad is None else block(p.grad)
            if gradient is None:
                master.grad = None if master is not p else p.grad
                continue
            if gradient.dtype is not master.dtype:
                gradient = gradient.to(master.dtype)
            elif self._scale is not None:
                gradient = gradient.clone()
            if self._scale is not None:
                gradient.div_(self._scale.scale)
            if isinstance(master, DTensor) and not isinstance(gradient, DTensor):
                gradient = DTensor.from_local(gradient, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())
            if master is not p or self._zero == 2:
                master.grad = gradient
        self._unscaled = True

    def _pending(self):
        """Whether any replica has gradients of its own alone: all must agree to add them up."""
        if self._groups.data_size == 1:
            return False
        flag = torch.tensor([float(self._dirty)], device=self._device())
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._groups.data_group)
        return bool(flag.item())

    def _device(self):
        return block(self._working[0]).device if self._working else torch.device("cpu")

    def _counted(self):
        """This rank's masters' gradients, each of the job's parameters' elements on one rank only."""
        tensor_rank = dist.get_rank(self._groups.tensor_group) if self._groups.tensor_group is not None else 0
        found = []
        for p, master in self._masters.items():
            if master.grad is None or self._owner[p] != self._replica:
                continue
            if not isinstance(p, DTensor) and tensor_rank or id(p) in self._common and self._groups.stage:
                continue
            found.append(block(master.grad))
        return found

    @torch.no_grad()
    def _total_norm(self, norm_type):
        found, device = self._counted(), self._device()
        infinite = norm_type == float("inf")
        own = torch.zeros((), dtype=torch.float64, device=device)
        if found:
            norms = torch.stack(torch._foreach_norm([g.to(device) for g in found], norm_type)).double()
            own = norms.max() if infinite else norms.pow(norm_type).sum()
        dist.all_reduce(own, dist.ReduceOp.MAX if infinite else dist.ReduceOp.SUM)
        return (own if infinite else own.pow(1 / norm_type)).to(torch.float64 if any(p.dtype is torch.float64 for p in self._working) else torch.float32)

    @torch.no_grad()
    def _clip(self, max_norm, norm_type, error_if_nonfinite, *args, **kwargs):
        """By the norm of all parts of the model: every rank calls it."""
        norm = self._total_norm(float(norm_type))
        if error_if_nonfinite and not bool(norm.isfinite()):
            raise RuntimeError(f"castor: the gradients' norm of order {norm_type} is {norm.item()}, and error_if_nonfinite=True")
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for master in self._masters.values():
            if master.grad is not None:
                block(master.grad).mul_(factor.to(master.grad.device, master.grad.dtype))
        clipped = {block(m.grad).data_ptr() for m in self._masters.values() if m.grad is not None}
        for p in self._working:  # to these, clipped alike on all replicas, the next backward adds, if the script keeps them
            if p.grad is not None and block(p.grad).data_ptr() not in clipped:
                block(p.grad).mul_(factor.to(p.grad.device, p.grad.dtype))
        return norm

    def get_grad_norm(self, norm_type=2.0, **kwargs):
        """The norm of all parts' gradients together, before the last clipping, a float. Every rank calls it."""
        if self._norm is not None:
            return float(self._norm)
        self.unscale_grad()
        return float(self._total_norm(float(norm_type)))

    @torch.no_grad()
    def clip_grad_by_value(self, clip_value, *args, **kwargs):
        self.unscale_grad()
        torch.nn.utils.clip_grad_value_(list(self._masters.values()), clip_value, *args, **kwargs)

    # ---- steps

    def step(self, *args, **kwargs):
        """Steps on every rank, or under fp16 on none: if a gradient of any is not finite, the loss scale becomes smaller."""
        if args or kwargs:
            raise ValueError("castor: under HybridParallelPlugin an optimizer's step takes no closure: call booster.backward() or "
                             "booster.execute_pipeline() before it")
        _ranks.trains(steps=True)
        self._to_masters()
        if self._scale is not None and self._overflowed():
            core.loss_scale_overflowed(byref(self._scale), dist.get_rank() == 0)
            self._after()
            return None
        if self._max_norm > 0:
            self.clip_grad_by_norm(self._max_norm, self._norm_type)
        self._follow()
        result = self.optim.step()
        if self._scale is not None:
            core.loss_scale_stepped(byref(self._scale), dist.get_rank() == 0)
        self._publish()
        self._after()
        return result

    def _after(self):
        self._norm = None
        self._unscaled = False
        self._drop()

    def _drop(self):
        """The masters' own gradients; those of parameters stay until zero_grad()."""
        for p, master in self._masters.items():
            if master is not p:
                master.grad = None

    def _overflowed(self):
        bad = [not bool(block(m.grad).isfinite().all()) for m in self._masters.values() if m.grad is not None]
        flag = torch.tensor([float(any(bad))], device=self._device())
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag.item())

    @torch.no_grad()
    def _follow(self):
        """Masters take what a script has written into parameters since the last step."""
        for p, master in self._masters.items():
            if master is p:
                continue
            value, held = block(p.detach()), block(master.detach())
            if value.dtype is held.dtype:
                if value.data_ptr() != held.data_ptr():
                    master.data = value if not isinstance(master, DTensor) else p.data
            else:
                held.copy_(followed(held, value))

    @torch.no_grad()
    def _publish(self):
        """New values of masters become the parameters', on all replicas."""
        for p, master in self._masters.items():
            value = block(p.detach())
            if master is not p and block(master.detach()).dtype is not value.dtype:
                value.copy_(block(master.detach()))
        if self._zero:
            for p in self._working:
                if p.requires_grad:
                    dist.broadcast(block(p.detach()), self._groups.data_ranks[self._owner[p]], group=self._groups.data_group)

    def zero_grad(self, set_to_none=True, *args, **kwargs):
        for p in self._working:
            if p.grad is not None:
                p.grad = None if set_to_none else torch.zeros_like(p.grad)
        self._drop()
        self._sums.clear()
        self._dirty = self._unscaled = self._foreign = False
        self._norm = None

    def add_param_group(self, param_group):
        raise ValueError("castor: HybridParallelPlugin divides an optimizer's parameters at boost(): add groups before it")

    def float_of(self, p):
        """The float value of this rank's part of a parameter that this replica steps."""
        self._follow()
        return block(self._masters[p].detach())

    def scale_state(self):
        """What a checkpoint keeps of the loss scale."""
        return {} if self._scale is None else {KEY: {name: getattr(self._scale, name) for name in ("scale", "good", "overflows")}}

    def load_scale(self, saved):
        for name, value in saved.get(KEY, {}).items() if self._scale is not None and isinstance(saved.get(KEY), dict) else ():
            setattr(self._scale, name, value)

    def load_state_dict(self, state):
        raise RuntimeError("castor: an optimizer of a HybridParallelPlugin has a part of the states on each rank: load them with booster.load_optimizer()")
