"""The table of the suite: every script and case, and how equal it must be to plain PyTorch.

Scripts that end in `_ddp.py` are started by torchrun; the others are one process, which Castor starts `--nproc` times.
At N = 2 a DDP script must be bitwise equal: Castor and gloo scale by 1/N and then add two numbers. At N = 4 gloo's order
of summation differs from Castor's (rank order), and a single-process script adds its whole batch in one order that no
split has; there the kind of the row gives the tolerance.
"""

import ast
import os
from dataclasses import dataclass, field

from compare import Tolerance

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts")

EXACT = Tolerance("bitwise")
SGD = Tolerance(
    "sgd",
    "sums in another order, updates linear in the gradient",
    loss=1e-5,
    gradient=1e-5,
    parameter=1e-5,
    state=1e-5,
)
ADAPTIVE = Tolerance(
    "adaptive",
    "updates divide by the gradient's own size, so that an element whose gradient is rounding noise moves up to a "
    "learning rate either way",
    loss=1e-4,
    gradient=1e-3,
    parameter=5e-3,
    state=1e-3,
)
HALF = Tolerance(
    "half",
    "sums in another order, rounded to 8 or 11 bits after every addition",
    loss=2e-2,
    gradient=5e-2,
    parameter=5e-2,
    state=1e-1,
)


@dataclass(frozen=True)
class Expect:
    """What a row must show: a tolerance where the order of sums differs, or a refusal with a message like `refused`."""

    tolerance: Tolerance
    reason: str = ""
    refused: str = ""  # pattern that one line of Castor's must match
    aside: str = ""  # why Castor leaves the synchronization to PyTorch; the result must be equal all the same
    exact_at_2: bool = True
    arguments: tuple = ()
    stages: tuple = ()  # ("plain" | "castor", arguments) one after the other in the same folder
    ignored: tuple = ()  # files whose bytes hold times or paths
    seconds: int = 15  # that one case may take, at most, on a busy machine


sgd, adaptive, half = Expect(SGD), Expect(ADAPTIVE), Expect(HALF)

TABLE = {
    "gpt_ddp.py": {"": adaptive},
    "gpt.py": {"": adaptive},
    "nanogpt_ddp.py": {"": adaptive},
    "loops_ddp.py": {
        "sgd": sgd,
        "sgd_momentum": sgd,
        "sgd_fused": sgd,
        "adam": adaptive,
        "adam_amsgrad": adaptive,
        "adamw": adaptive,
        "adamw_fused": adaptive,
        "adamw_foreach": adaptive,
        "rmsprop": adaptive,
        "adagrad": adaptive,
        "adafactor": adaptive,
        "groups": adaptive,
        "learning_rate_tensor": adaptive,
        "one_cycle": adaptive,
        "schedules_chained": sgd,
        "gradients_as_bucket_view": adaptive,
        "two_models": adaptive,
        "models_one_after_another": sgd,
    },
    "clip_ddp.py": {
        "norm": adaptive,
        "norm_sgd": sgd,
        "norm_infinity": adaptive,
        "norm_never_reached": adaptive,
        "value": adaptive,
        "several_calls": adaptive,
        "one_parameter": adaptive,
        "generator": adaptive,
        "norm_logged_by_rank_0": adaptive,
        "skipped_on_a_large_norm": adaptive,
        "not_finite_is_an_error": sgd,
        "by_hand": adaptive,
    },
    "amp_ddp.py": {
        "scaler": sgd,
        "overflow_on_one_rank": adaptive,
        "overflow_unscaled_and_clipped": adaptive,
        "scaler_with_fused_optimizer": adaptive,
        "scaler_over_two_optimizers": adaptive,
        "autocast": half,
        "bfloat16_model": half,
        "bfloat16_model_sgd": half,
        "float16_model": half,
        "double_model": adaptive,
        "mixed_dtypes": half,
        "master_weights_by_hand": half,
    },
    "gradients_ddp.py": {
        "zeroed_in_place": adaptive,
        "zeroed_by_the_module": adaptive,
        "zeroed_by_hand": adaptive,
        "never_zeroed": sgd,
        "kept_in_a_list": sgd,
        "kept_while_zeroed_in_place": sgd,
        "replaced": adaptive,
        "edited_in_place": sgd,
        "noise_of_one_rank": sgd,
        "gathered_by_the_script": adaptive,
        "hooks_of_the_script": sgd,
        "two_backwards_of_one_graph": sgd,
        "two_forwards_one_backward": sgd,
        "two_losses_one_step": sgd,
        "double_backward": sgd,
        "gradient_of_the_input_only": adaptive,
        "stale_graph": sgd,
        "slow_ranks": adaptive,
    },
}


@dataclass(frozen=True)
class Row:
    script: str
    case: str
    expect: Expect = field(compare=False)

    @property
    def distributed(self):
        return self.script.endswith("_ddp.py")

    @property
    def name(self):
        return f"{self.script}:{self.case}" if self.case else self.script

    @property
    def alone(self):
        """Rows that need a process of their own: whole scripts, and cases that Castor may end or leave to PyTorch."""
        return bool(not self.case or self.expect.refused or self.expect.aside or self.expect.stages or self.expect.arguments)

    def tolerance(self, ranks, plugin):
        if plugin in ("none", "plain") or (self.distributed and ranks == 2 and self.expect.exact_at_2):
            return EXACT
        return self.expect.tolerance


def rows():
    return [Row(script, case, expect) for script, cases in TABLE.items() for case, expect in cases.items()]


def cases_in(script):
    """The names and first lines of documentation of the cases that a script declares."""
    with open(os.path.join(SCRIPTS, script)) as file:
        tree = ast.parse(file.read())
    found = {"": (ast.get_docstring(tree) or "").splitlines()[0]}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and any(ast.unparse(d) == "record.case" for d in node.decorator_list):
            found[node.name] = (ast.get_docstring(node) or "").split("\n")[0]
    return found


def disagreements():
    """Scripts and cases without a row, and rows without a case."""
    found = []
    helpers = {"record.py", "model.py", "text.py"}
    for script in sorted(name for name in os.listdir(SCRIPTS) if name.endswith(".py") and name not in helpers):
        if script not in TABLE:
            found.append(f"{script} has no row in rows.py")
            continue
        declared = set(cases_in(script)) - {""}
        listed = set(TABLE[script])
        if declared:
            found += [f"{script}: the case {case} has no row" for case in sorted(declared - listed)]
            found += [f"{script}: the row {case} has no case" for case in sorted(listed - declared - {""})]
    found += [f"{script} does not exist" for script in TABLE if not os.path.exists(os.path.join(SCRIPTS, script))]
    return found
