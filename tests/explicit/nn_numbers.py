"""castor.nn, castor.utils and castor.logging in one process without the library: see test_nn.py for what must be found."""
import copy
import io
import math
import os
import pickle
import random
import sys
import time
import warnings

import torch
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

import castor.logging
import castor.models.loss
import castor.nn as nn
import castor.utils as utils
from castor.nn import lr_scheduler as rates
from castor.nn import optimizer as optimizers
from castor.utils.optimizer_wrapper import WrappedOptimizer
from found import found, raised

# ---- schedulers: the rates of two groups, 1 and 10, at t = 0, 1, ...
SCHEDULERS = {
    "linear 5, 2": lambda o, last=-1: rates.LinearWarmupLR(o, 5, 2, last),
    "linear 4": lambda o, last=-1: rates.LinearWarmupLR(o, total_steps=4, last_epoch=last),
    "linear 3, 3": lambda o, last=-1: rates.LinearWarmupLR(o, 3, warmup_steps=3, last_epoch=last),
    "cosine 4": lambda o, last=-1: rates.CosineAnnealingLR(o, total_steps=4, eta_min=0, last_epoch=last),
    "cosine 6, 2": lambda o, last=-1: rates.CosineAnnealingWarmupLR(o, total_steps=6, warmup_steps=2, eta_min=0.5, last_epoch=last),
    "cosine 2, 0": lambda o, last=-1: rates.CosineAnnealingWarmupLR(o, 2, last_epoch=last),
    "cosine 2, 2": lambda o, last=-1: rates.CosineAnnealingWarmupLR(o, 2, 2, last_epoch=last),
    "flat 8": lambda o, last=-1: rates.FlatAnnealingLR(o, 8, pct_start=0.5, last_epoch=last),
    "flat 10, 2": lambda o, last=-1: rates.FlatAnnealingWarmupLR(o, 10, 2, pct_start=0.5, last_epoch=last),
    "polynomial 4": lambda o, last=-1: rates.PolynomialLR(o, 4, end_lr=0.2, power=2, last_epoch=last),
    "polynomial 6, 2": lambda o, last=-1: rates.PolynomialWarmupLR(o, 6, 2, end_lr=0.0, last_epoch=last),
    "polynomial 2, 2": lambda o, last=-1: rates.PolynomialWarmupLR(o, 2, 2, end_lr=0.0, last_epoch=last),
    "milestones": lambda o, last=-1: rates.MultiStepLR(o, 6, milestones=[2, 4], gamma=0.5, last_epoch=last),
    "milestones, 2": lambda o, last=-1: rates.MultiStepWarmupLR(o, 6, 2, milestones=[1, 3, 5], gamma=0.5, last_epoch=last),
    "milestones, at 2": lambda o, last=-1: rates.MultiStepWarmupLR(o, 6, 2, milestones=[2, 4], gamma=0.5, last_epoch=last),
    "milestones, 0": lambda o, last=-1: rates.MultiStepWarmupLR(o, 6, 0, milestones=[0, 2], gamma=0.5, last_epoch=last),
    "steps": lambda o, last=-1: rates.StepLR(o, 6, step_size=2, gamma=0.5, last_epoch=last),
    "exponential": lambda o, last=-1: rates.ExponentialLR(o, 6, gamma=0.5, last_epoch=last),
    "lambda": lambda o, last=-1: rates.LambdaLR(o, 6, lr_lambda=lambda t: 1 / (t + 1), last_epoch=last),
    "multiplied": lambda o, last=-1: rates.MultiplicativeLR(o, 6, lr_lambda=lambda t: 0.5, last_epoch=last),
    "one cycle": lambda o, last=-1: rates.OneCycleLR(o, 5, pct_start=0.4, anneal_strategy="linear", cycle_momentum=False, div_factor=4, final_div_factor=5,
                                                     last_epoch=last),
}
COMPOSED = {
    "warm-up, then lambda": lambda o: rates.WarmupScheduler(o, 2, LambdaLR(o, lambda t: 1 / (t + 2))),
    "flat, then lambda": lambda o: rates.DelayerScheduler(o, 2, LambdaLR(o, lambda t: 1 / (t + 2))),
    "warm-up, flat, then lambda": lambda o: rates.WarmupDelayerScheduler(o, 2, 1, LambdaLR(o, lambda t: 1 / (t + 2))),
}


def optimizer_of(scale=(1.0, 10.0)):
    given = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    return torch.optim.SGD([{"params": [p], "lr": lr} for p, lr in zip(given, scale)], lr=1.0)


def follow(optimizer, scheduler, steps):
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        yield [group["lr"] for group in optimizer.param_groups], scheduler.get_last_lr(), scheduler.last_epoch


def ahead(make, steps=7):
    """The first group's rates at t = 0 to `steps`. Also that the second one's are ten times as large where they go to 0, and that
    get_last_lr() and last_epoch say the same."""
    optimizer = optimizer_of()
    scheduler = make(optimizer)
    seen = [([group["lr"] for group in optimizer.param_groups], scheduler.get_last_lr(), scheduler.last_epoch)]
    seen += follow(optimizer, scheduler, steps if not isinstance(scheduler, rates.OneCycleLR) else 4)
    assert all(now == last for now, last, _ in seen), seen
    assert [t for _, _, t in seen] == list(range(len(seen))), seen
    return [now[0] for now, _, _ in seen], [now[1] / 10 for now, _, _ in seen]


def resumed(make, at, by_last_epoch):
    """What follows step `at`, in a new optimizer and scheduler that were given the state; None: what follows without that."""
    optimizer = optimizer_of()
    scheduler = make(optimizer)
    list(follow(optimizer, scheduler, at))
    if by_last_epoch is not None:
        kept, state = optimizer.state_dict(), pickle.loads(pickle.dumps(scheduler.state_dict()))
        optimizer = optimizer_of()
        if by_last_epoch:
            optimizer.load_state_dict(kept)
            scheduler = make(optimizer, at - 1)
        else:
            scheduler = make(optimizer)
            optimizer.load_state_dict(kept)
            scheduler.load_state_dict(state)
    return [[round(lr, 12) for lr in seen[0]] for seen in follow(optimizer, scheduler, 1 if isinstance(scheduler, rates.OneCycleLR) else 3)]


for name, make in SCHEDULERS.items():
    first, second = ahead(make)
    found(name, first)
    if not name.startswith(("cosine 6", "polynomial 4")):  # whose ends are not 0
        assert all(math.isclose(a, b, abs_tol=1e-12) for a, b in zip(first, second)), name
for name, make in COMPOSED.items():
    found(name, ahead(make)[0])
differing = []
for name, make in SCHEDULERS.items():
    for at in (1, 2, 3):
        through = resumed(make, at, None)
        # PyTorch's StepLR and MultiStepLR take a milestone twice that is at last_epoch + 1.
        ways = (False,) if name.startswith(("steps", "milestones")) else (False, True)
        differing += [(name, at, way, through) for way in ways if resumed(make, at, way) != through]
found("resumed otherwise", differing)
wrapped = WrappedOptimizer(optimizer_of())
found("wrapped", [now[0] for now, _, _ in follow(wrapped, rates.CosineAnnealingWarmupLR(wrapped, 6, 2, 0.5), 6)])
tensors = optimizer_of(scale=(torch.tensor(1.0), torch.tensor(10.0)))
own = tensors.param_groups[0]["lr"]
found("rates in tensors", [[float(now[0]) for now, _, _ in follow(tensors, rates.CosineAnnealingWarmupLR(tensors, 6, 2, 0.5), 6)],
                           tensors.param_groups[0]["lr"] is own])
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTorch wants no numbers there
    optimizer = optimizer_of()
    jumping = rates.PolynomialWarmupLR(optimizer, 6, 2, 0.0)
    seen = []
    for epoch in (1, 4, 3):
        jumping.step(epoch)
        seen.append([optimizer.param_groups[0]["lr"], jumping.last_epoch])
    found("jumps", seen)
o = optimizer_of()
found("scheduler errors", [
    raised(ValueError, rates.LinearWarmupLR, o, 0), raised(ValueError, rates.LinearWarmupLR, o, 3, 4), raised(ValueError, rates.CosineAnnealingWarmupLR, o, 3, -1),
    raised(ValueError, rates.FlatAnnealingLR, o, 3, 1.5), raised(ValueError, rates.PolynomialLR, o, 3, -0.1), raised(ValueError, rates.MultiStepWarmupLR, o, 3),
    raised(TypeError, rates.WarmupScheduler, o, 2, ReduceLROnPlateau(o)), raised(ValueError, rates.DelayerScheduler, o, -1, LambdaLR(o, lambda t: 1)),
    raised(ValueError, rates.CosineAnnealingWarmupLR(o, 3).load_state_dict, rates.LinearWarmupLR(o, 3).state_dict()),
    raised(ValueError, rates.CosineAnnealingWarmupLR(o, 3).load_state_dict, rates.PolynomialWarmupLR(o, 3).state_dict()),
])

# ---- one step of each optimizer, from p = (3, 4) and the gradient (0.6, 0.8), of norms 5 and 1


def stepped(make, steps=1, p=(3.0, 4.0), grad=(0.6, 0.8)):
    p = torch.nn.Parameter(torch.tensor(p, dtype=torch.float64))
    optimizer = make([p])
    for _ in range(steps):
        p.grad = torch.tensor(grad, dtype=torch.float64)
        assert optimizer.step() is None and p.grad.equal(torch.tensor(grad, dtype=torch.float64))
    return p.tolist()


found("HybridAdam", [stepped(lambda p: optimizers.HybridAdam(p, 0.1, False, (0.9, 0.99), 0.0, 0.1)),
                     stepped(lambda p: optimizers.HybridAdam(p, 0.1, False, (0.9, 0.99), 0.0, 0.1), 2),
                     stepped(lambda p: optimizers.FusedAdam(p, 0.1, False, (0.0, 0.0), 0.0, False, 0.1))])
found("FusedSGD", [stepped(lambda p: optimizers.FusedSGD(p, 0.1, 0.5, weight_decay=0.1, wd_after_momentum=last), 2) for last in (False, True)])
found("Lamb", [stepped(lambda p: optimizers.Lamb(p, 0.1, (0.5, 0.75), 0.0, decay, adam, corrected))
               for decay, adam, corrected in ((0, False, False), (0.5, False, False), (0, True, False), (0, True, True))])
found("FusedLAMB", [stepped(lambda p: optimizers.FusedLAMB(p, 0.1, corrected, (0.5, 0.75), 0.0, decay, False, decoupled, averaging, True, 0.5, everywhere))
                    for corrected, decay, decoupled, averaging, everywhere in (
                        (True, 0.0, True, True, False), (True, 0.0, True, True, True), (False, 0.0, True, False, False), (True, 1.0, True, True, False),
                        (True, 1.0, False, True, False))])
found("Lars", [stepped(lambda p: optimizers.Lars(p, 1.0, 0.5, 0.1, 0.2), 1), stepped(lambda p: optimizers.Lars(p, 1.0, 0.5, 0.1, 0.2), 2),
               stepped(lambda p: optimizers.Lars([{"params": p, "lars": False}], 1.0, 0.0, 0.1, 0.2)),
               stepped(lambda p: optimizers.Lars(p, 1.0), p=(0.0, 0.0)), stepped(lambda p: optimizers.Lars(p, 0.5), p=(0.0, 0.0), grad=(30.0, -40.0))])
found("Adafactor", [stepped(lambda p: optimizers.Adafactor(p)), stepped(lambda p: optimizers.Adafactor(p, warmup_init=True, scale_parameter=False)),
                    stepped(lambda p: optimizers.Adafactor(p, 0.1, relative_step=False, scale_parameter=False, beta1=0.5, weight_decay=0.1))])
found("CAME", [stepped(lambda p: optimizers.CAME(p, 0.1, weight_decay=0.1)), stepped(lambda p: optimizers.CAME(p, 0.1, clip_threshold=0.5))])
found("Adafactor, factored", stepped(lambda p: optimizers.Adafactor(p, scale_parameter=False), p=((0.0, 0.0), (0.0, 0.0)), grad=((1.0, 2.0), (3.0, 4.0))))
# One row and two columns: the factors have the squares exactly, and so have those of the deviations.
found("CAME, factored", stepped(lambda p: optimizers.CAME(p, 0.1, betas=(0.5, 0.0, 0.0)), p=((3.0, 4.0),), grad=((0.6, -0.8),)))


def beside(make, other, shapes=((5, 7), (3,), (2, 3, 4)), steps=4):
    """The largest difference from another library's optimizer, in float."""
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(shape, generator=generator) for shape in shapes]
    sides = [[torch.nn.Parameter(value.clone()) for value in values] for _ in range(2)]
    both = make(sides[0]), other(sides[1])
    for _ in range(steps):
        for a, b in zip(*sides):
            a.grad = torch.randn(a.shape, generator=generator)
            b.grad = a.grad.clone()
        for optimizer in both:
            optimizer.step()
    return max((a - b).abs().max().item() for a, b in zip(*sides))


compared = []
if os.environ.get("TEST_LENGTH") == "all":
    from transformers.optimization import Adafactor as Reference

    for options in ({}, {"warmup_init": True}, {"beta1": 0.9, "weight_decay": 0.1}, {"lr": 0.01, "relative_step": False, "scale_parameter": False}):
        compared.append(beside(lambda p: optimizers.Adafactor(p, **options), lambda p: Reference(p, **options)))
found("Adafactor beside transformers'", compared)

# ---- what optimizers keep
p = torch.nn.Parameter(torch.ones(3))
kinds = {"HybridAdam": {}, "CPUAdam": {}, "FusedAdam": {}, "FusedSGD": {"lr": 1.0}, "Lamb": {}, "FusedLAMB": {}, "Lars": {}, "CAME": {"lr": 0.1}, "Adafactor": {}}
kept = {}
for name, options in kinds.items():
    optimizer = getattr(optimizers, name)([p], **options)
    p.grad = torch.ones(3)
    optimizer.step()
    for other in (pickle.loads(pickle.dumps(optimizer)), copy.deepcopy(optimizer)):
        assert other.state_dict().keys() == optimizer.state_dict().keys()
        (q,) = other.param_groups[0]["params"]
        q.grad = torch.ones(3)
        other.step()
    optimizer.step()
    kept[name] = [torch.equal(p, q), sorted(optimizer.state[p]), optimizer.step(lambda: 5.0)]
found("kept", kept)
other = optimizers.FusedSGD([p], 1.0, wd_after_momentum=True)
found("modes", [copy.deepcopy(other).wd_after_momentum, copy.deepcopy(optimizers.FusedAdam([p], set_grad_none=False)).set_grad_none,
                copy.deepcopy(optimizers.HybridAdam([p], adamw_mode=False)).adamw_mode, issubclass(optimizers.HybridAdam, optimizers.CPUAdam),
                optimizers.cast_to_distributed(other) is other])
zeroed = []
for kind, options in ((optimizers.FusedAdam, {}), (optimizers.FusedLAMB, {"set_grad_none": False})):
    for told in ((), (True,), (False,)):
        p.grad = torch.ones(3)
        kind([p], **options).zero_grad(*told)
        zeroed.append(None if p.grad is None else p.grad.tolist())
found("zeroed", zeroed)
# A state dict of Colossal-AI's own: counts are numbers, groups have its entries alone.
state = {"state": {0: {"step": 4, "exp_avg": torch.ones(3), "exp_avg_sq": torch.ones(3)}},
         "param_groups": [{"lr": 0.1, "betas": (0.5, 0.5), "eps": 0.0, "weight_decay": 0.5, "bias_correction": False, "params": [0]}]}
loaded = {}
for make in (lambda: optimizers.HybridAdam([p]), lambda: optimizers.Lamb([p], adam=True, bias_correction=True)):
    with torch.no_grad():
        p.fill_(1.0)
    optimizer = make()
    given = copy.deepcopy(state)
    if isinstance(optimizer, optimizers.Lamb):
        given["param_groups"][0]["adam"] = True
    optimizer.load_state_dict(given)
    p.grad = torch.ones(3)
    optimizer.step()
    loaded[type(optimizer).__name__] = [p[0].item(), optimizer.state[p]["step"].item()]
found("loaded", loaded)
mine = optimizers.HybridAdam([p])
mine.load_state_dict(torch.optim.Adam([p], weight_decay=0.5).state_dict())
found("the object's mode stays", [mine.param_groups[0]["decoupled_weight_decay"], mine.param_groups[0]["bias_correction"]])
sparse = torch.nn.Parameter(torch.ones(3))
sparse.grad = torch.ones(3).to_sparse()
wrong = [("lr", -1.0), ("lr", float("nan")), ("betas", (0.9, 1.0)), ("betas", (0.9,)), ("betas", 0.9), ("eps", -1e-8), ("weight_decay", -0.1),
         ("nvme_offload_fraction", 1.5)]
found("optimizer errors", [
    [raised(ValueError, optimizers.HybridAdam, [p], **{name: value}) for name, value in wrong],
    raised(TypeError, optimizers.HybridAdam), raised(TypeError, optimizers.HybridAdam, [p], model_params=[p]),
    raised(ValueError, optimizers.Lamb, [{"params": [p], "betas": (0.9, 2.0)}]), raised(ValueError, optimizers.CAME, [p]), raised(ValueError, optimizers.CAME, [p], 0.1, 1e-8),
    raised(ValueError, optimizers.Adafactor, [p], 0.1), raised(ValueError, optimizers.Adafactor, [p], relative_step=False), raised(ValueError, optimizers.Lars, [p], eeta=0.0),
    raised(RuntimeError, optimizers.FusedLAMB, [p], amsgrad=True), raised(RuntimeError, optimizers.Lamb([sparse]).step), raised(ValueError, optimizers.FusedSGD, [p], 0.1, -0.5),
])
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    optimizers.HybridAdam([p], nvme_offload_fraction=0.5, nvme_offload_dir="/disk")
found("offload", [str(warning.message) for warning in said] + [os.path.basename(said[0].filename)])

# ---- the loss: of three tokens the predictions of the second and the third count
logits = torch.tensor([[[0.0, math.log(3.0)], [math.log(7.0), 0.0], [50.0, -50.0]]])
found("GPTLMLoss", [nn.GPTLMLoss()(logits, torch.tensor([[1, 1, 0]])).item(), nn.GPTLMLoss()(logits, torch.tensor([[1, 1, -100]])).item(),
                    castor.models.loss.GPTLMLoss is nn.GPTLMLoss, raised(ValueError, nn.GPTLMLoss(), logits, torch.tensor([[1, 1]]))])

# ---- utils
utils.set_seed(5)
first = [random.random(), torch.rand(1).item()]
utils.set_seed(5)
found("seeded", [first == [random.random(), torch.rand(1).item()], str(utils.get_current_device())])
utils.set_device(0), utils.synchronize(), utils.empty_cache()
once = utils.disposable(lambda x: x + 1)
found("once", [once(1), once(2)])
nested = torch.nn.Sequential(torch.nn.Module(), torch.nn.Module())
nested[1].register_buffer("kept", torch.zeros(1))
nested[1].register_buffer("left", torch.zeros(1), persistent=False)
nested.register_buffer("own", torch.zeros(1), persistent=False)
ignored = torch.zeros(1)
ignored._ddp_to_ignore = True
found("modules", [sorted(utils.get_non_persistent_buffers_set(nested)), sorted(utils.get_non_persistent_buffers_set(nested, prefix="m")),
                  utils.is_ddp_ignored(p), utils.is_ddp_ignored(ignored)])
freed = torch.zeros(8)
utils.free_storage(freed)
utils.free_storage(freed)
found("freed", [freed.untyped_storage().size(), list(freed.shape), raised(ValueError, utils.free_storage, torch.zeros(8)[2:])])
folder = os.path.join(os.environ["EXPLICIT_TEST_FOUND"], "made")
utils.ensure_path_exists(os.path.join(folder, "file"))
utils.ensure_path_exists("file")
found("folder", os.path.isdir(folder))
with utils.conditional_context(torch.no_grad(), enable=False):
    outside = torch.is_grad_enabled()
with utils.conditional_context(torch.no_grad()):
    found("conditional", [outside, torch.is_grad_enabled()])
p.grad = torch.tensor([3.0, 4.0, 0.0])
norms = [utils.clip_grad_norm_fp32([p], 2.5), p.grad.tolist(), utils.clip_grad_norm_fp32(p, 100.0, float("inf"))]
narrow = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
narrow.grad = torch.ones(3, dtype=torch.bfloat16)
found("clipped", [*norms, raised(TypeError, utils.clip_grad_norm_fp32, [narrow], 1.0)])
timers = utils.MultiTimer()
timers.start("step")
time.sleep(0.02)
lap = timers.get_timer("step").lap()
stopped = timers.stop("step", keep_in_history=True)
timer = dict(timers)["step"]
found("timer", [0.02 <= lap <= stopped < 10, timer.get_elapsed_time() == timer.get_history_mean() == timer.get_history_sum() == stopped, timer.has_history,
                raised(RuntimeError, timer.lap)])
timers.reset()
timers.set_status(False)
timers.start("off")
found("timers off", [timers.stop("off"), timers.is_on(), timer.has_history, raised(RuntimeError, timer.get_history_mean)])

# ---- logging
said = io.StringIO()
logger, stderr = castor.logging.get_dist_logger("colossalai"), sys.stderr
sys.stderr = said
logger.info("50% done")
logger.debug("too much")
logger.set_level("ERROR")
logger.warning("not said")
logger.error("said", ranks=[0])
logger.error("another rank's", ranks=[1])
sys.stderr = stderr
found("logged", [said.getvalue(), castor.logging.get_dist_logger("colossalai") is logger, raised(ValueError, castor.logging.DistributedLogger, "colossalai"),
                 raised(ValueError, logger.set_level, "LOUD")])
import logging  # noqa: E402

chatty, mine = logging.getLogger("chatty"), castor.logging.get_dist_logger()
chatty.setLevel(logging.DEBUG)
castor.logging.disable_existing_loggers(include=["other"])
before = chatty.level
castor.logging.disable_existing_loggers()
found("silenced", [before, chatty.level, logging.getLogger("castor").level])
