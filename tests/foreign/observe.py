"""Runs a program as `python PROGRAM ARG...` would, and writes down the gradients that each step of each optimizer met and the
parameters that it left: observe.py FOLDER PROGRAM ARG... The record is FOLDER/record/rankR.pkl (tests/scripts/record.py).
With OBSERVE_SEED, a program that does not seed itself is the same in each run; with OBSERVE_DOUBLE it computes in float64."""
import os
import random
import runpy
import sys

sys.path[0] = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts")
import torch  # noqa: E402
from record import Recorder  # noqa: E402
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook  # noqa: E402

folder, program = os.path.abspath(sys.argv[1]), sys.argv[2]
log = Recorder(folder)
if "TORCHELASTIC_RUN_ID" in os.environ:
    log.rank = int(os.environ["RANK"])  # the process group does not stand yet
seen = []  # optimizers, in the order of their first steps; kept, so that none takes another's place


def number_of(optimizer):
    if not any(optimizer is known for known in seen):
        seen.append(optimizer)
    return next(number for number, known in enumerate(seen) if known is optimizer)


def parameters_of(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def before(optimizer, *_):
    log.note(f"optimizer {number_of(optimizer)} gradients", [p.grad for p in parameters_of(optimizer)])


def after(optimizer, *_):
    log.note(f"optimizer {number_of(optimizer)} parameters", parameters_of(optimizer))


register_optimizer_step_pre_hook(before)
register_optimizer_step_post_hook(after)
if "OBSERVE_SEED" in os.environ:
    random.seed(int(os.environ["OBSERVE_SEED"]))
    torch.manual_seed(int(os.environ["OBSERVE_SEED"]))
if "OBSERVE_DOUBLE" in os.environ:
    torch.set_default_dtype(torch.float64)
sys.argv = sys.argv[2:]
sys.path[0] = os.path.dirname(os.path.abspath(program))
try:
    runpy.run_path(program, run_name="__main__")
finally:
    log.close()
