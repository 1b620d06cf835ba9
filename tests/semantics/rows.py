"""The table of the suite: every script and case, and how equal it must be to plain PyTorch.

Scripts that end in `_ddp.py` are started by torchrun; the others are one process, which Castor starts `--nproc` times.
At N = 2 a DDP script must be bitwise equal: Castor and gloo scale by 1/N and then add two numbers. At N = 4 gloo's order
of summation differs from Castor's (rank order), and a single-process script adds its whole batch in one order that no
split has; there the kind of the row gives the tolerance.
"""

import ast
import functools
import math
import os
from dataclasses import dataclass, field, replace

from compare import Tolerance

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts")

ENGINES = ("gemini", "ddp", "zero1", "zero2")  # the plugins that do something
ACCUMULATED = "a batch in three parts is summed in another order"
HELPERS = ("model.py", "parts.py", "record.py", "steps.py", "text.py")  # what the scripts import of each other

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
    floor=1e-4,
)
HALF = Tolerance(
    "half",
    "sums in another order, rounded to 8 or 11 bits after every addition",
    loss=2e-2,
    gradient=5e-2,
    parameter=5e-2,
    state=1e-1,
)
ANY = Tolerance(
    "agreement",
    "another run than the single process's by design: only the shape of what is seen is compared, and the ranks with each other",
    loss=math.inf,
    gradient=math.inf,
    parameter=math.inf,
    state=math.inf,
)


@dataclass(frozen=True)
class Expect:
    """What a row must show: a tolerance where the order of sums differs, or a refusal with a message like `refused`."""

    tolerance: Tolerance
    reason: str = ""
    refused: str = ""  # pattern that one line of Castor's must match
    says: str = ""  # pattern that one line of Castor's must match where the run goes on
    aside: str = ""  # why Castor leaves the synchronization to PyTorch; the result must be equal all the same
    differs: str = ""  # pattern of the difference that is meant to be there, for the `reason`
    exact_at_2: bool = True
    repeatable: bool = True  # two plain runs are equal
    arguments: tuple = ()
    under: tuple = ()  # arguments of Castor's runs only
    options: tuple = ()  # Castor's, NAME=VALUE
    stages: tuple = ()  # ("plain" | "castor", arguments) one after the other in the same folder
    ignored: tuple = ()  # files whose bytes hold times or paths
    seconds: int = 15  # that one case may take, at most, on a busy machine


sgd, adaptive, half, agreement = Expect(SGD), Expect(ADAPTIVE), Expect(HALF), Expect(ANY)
accumulated = Expect(SGD, exact_at_2=False, under=("--parts", "3"), options=("CASTOR_ACCUMULATE=3",), reason=ACCUMULATED)


def like(expect, **changes):
    return replace(expect, **changes)


def resumed(*stages):
    """The same script twice in one folder; under Castor where the stage says so."""
    return tuple((who, ()) for who in stages)


DRIFTS = "the ranks' gradients are no longer equal, and their replicas would drift apart"
UNCOMPILED = "a step in the store is not compiled, and PyTorch's compiled one adds in another order (foreach)"

TABLE = {
    "gpt_ddp.py": {
        "": adaptive,
        "sums give their memory back": like(adaptive, options=("CASTOR_GRADIENT_RETURN=100",)),
        "small chunks on disk": like(adaptive, options=("CASTOR_CHUNK_SIZE=64K", "CASTOR_OFFLOAD_DIR=/var/tmp")),
    },
    "nanogpt_ddp.py": {
        "": adaptive,
        "resumed under Castor": like(adaptive, stages=(("plain", ()), ("castor", ("--resume",)))),
        "resumed without Castor": like(adaptive, stages=(("castor", ()), ("plain", ("--resume",)))),
    },
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
        "iterable_dataset": adaptive,
        "models_one_after_another": sgd,
    },
    "accumulate_ddp.py": {
        "sgd": accumulated,
        "adamw": like(accumulated, tolerance=ADAPTIVE),
        "sum_of_norms": accumulated,
        "clipped_by_norm": accumulated,
        "clipped_by_value": accumulated,
        "scheduler_each_step": accumulated,
        "scheduler_each_epoch": accumulated,
        "zeroed_in_place": accumulated,
        "zeroed_by_the_module": accumulated,
        "zeroed_after_the_step": accumulated,
        "dropped_by_hand": like(accumulated, tolerance=ADAPTIVE),
        "zeroed_by_hand": like(accumulated, tolerance=ADAPTIVE),
        "two_losses": accumulated,
        "own_accumulation": accumulated,
        "closure": accumulated,
        "used_by_turns": accumulated,
        "frozen_at_first": accumulated,
        "static_graph": accumulated,
        "scaler": accumulated,
        "overflow": accumulated,
        "two_models": accumulated,
        "evaluated_between": accumulated,
        "stream": accumulated,
        "sparse_embedding": like(accumulated, aside="a parameter has sparse gradients"),
        "gradients_gone_through": like(accumulated, refused="clears gradients that were made after optimizer.step"),
        "changed_by_hand": like(accumulated, refused="cleared, replaced or changed by the script"),
        "made_by_autograd_grad": like(accumulated, refused="cleared, replaced or changed by the script"),
        "line_search": like(accumulated, refused="LBFGS may evaluate its closure several times"),
        "short_epoch": like(accumulated, refused="an epoch has 2 batches and CASTOR_ACCUMULATE=3 needs 3"),
    },
    "accumulate.py": {
        "sgd": accumulated,
        "adamw_clipped": like(accumulated, tolerance=ADAPTIVE),
        "workers": accumulated,
        "workers_that_stay": accumulated,
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
        "another_limit_on_each_rank": like(adaptive, refused="the script changed them on rank 0, 1", reason=DRIFTS),
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
        "step_on_noise_of_one_rank": like(sgd, refused="the script changed them on rank 1\\)", reason=DRIFTS),
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
    "gan_ddp.py": {
        "weight_clamp": adaptive,
        "clamp_through_data": adaptive,
        "frozen_critic": adaptive,
        "one_optimizer_for_both": adaptive,
    },
    "weights_ddp.py": {
        "ema_swapped_in_and_out": adaptive,
        "ema_swapped_on_rank_0": adaptive,
        "ema_by_data_swap": adaptive,
        "averaged_model": sgd,
        "swa_with_batch_norm": sgd,
        "edited_between_steps": sgd,
        "edited_through_data": adaptive,
        "edited_between_forward_and_backward": sgd,
        "data_replaced": sgd,
        "data_replaced_by_views_of_one_buffer": adaptive,
        "set_by_assignment": adaptive,
        "alias_made_before_the_wrapper": sgd,
        "ranks_start_apart": sgd,
        "optimizer_before_wrapper": adaptive,
        "tied_by_object": adaptive,
        "tied_by_data": sgd,
        "transposed_parameter": adaptive,
        "channels_last": sgd,
        "layout_changed_after_wrapping": sgd,
        "parametrized": adaptive,
        "functional_call": adaptive,
    },
    "frozen_ddp.py": {
        "frozen_body": adaptive,
        "frozen_but_in_the_optimizer": adaptive,
        "thawed_with_a_new_wrapper": adaptive,
        "thawed_under_the_same_wrapper": sgd,
        "frozen_while_wrapped": adaptive,
        "unused_on_all_ranks_in_turn": adaptive,
        "unused_on_some_ranks": adaptive,
        "unused_on_one_rank_zeroed_in_place": adaptive,
        "used_without_synchronization_only": adaptive,
        "unused_and_momentum": sgd,
        "unused_is_an_error": like(
            sgd,
            reason="plain PyTorch stops at the second step unless told to look for unused parameters; Castor has no need to",
            differs="error: expected 1 items, found 0",
        ),
        "in_no_optimizer": adaptive,
        "ignored_by_the_wrapper": sgd,
        "low_rank_adapter": adaptive,
    },
    "sync_ddp.py": {
        "no_sync": adaptive,
        "require_backward_grad_sync": adaptive,
        "synchronized_every_time": adaptive,
        "no_sync_around_the_forward_only": sgd,
        "no_sync_with_unused": adaptive,
        "accumulation_of_different_length": sgd,
        "local_steps": sgd,
        "local_then_synchronized": sgd,
        "batch_norm": adaptive,
        "batch_norm_not_broadcast": adaptive,
        "batch_norm_with_accumulation": sgd,
        "communication_hook": like(half, aside="a communication hook reduces in the script's own way"),
        "communication_hook_of_the_script": like(sgd, aside="a communication hook reduces in the script's own way"),
        "join": like(sgd, aside="Join shadows the collectives of the ranks that have ended"),
        "static_graph": sgd,
        "logging_data": sgd,
        "sparse_gradients": like(sgd, aside="sparse gradients have no fixed place"),
        "sub_group": sgd,
        "pairs": adaptive,
        "group_of_one": like(sgd, aside="one rank has nothing to share"),
        "wrapped_but_not_called": sgd,
        "averaged_by_hand": like(sgd, aside="no wrapper: nothing to take over"),
    },
    "copies_ddp.py": {
        "deepcopy_of_the_module": adaptive,
        "deepcopy_of_the_optimizer": adaptive,
        "deepcopy_of_the_wrapper": adaptive,
        "deepcopy_before_the_first_step": adaptive,
        "target_network": adaptive,
        "sizes_of_what_is_saved": adaptive,
        "files_of_every_kind": like(adaptive, ignored=("head.raw", "deep.raw")),
        "pickled_wrapper": adaptive,
        "forked_child": sgd,
        "forked_workers": adaptive,
        "forked_workers_that_run_the_model": adaptive,
        "spawned_workers": like(adaptive, seconds=30),
        "tensors_sent_to_a_process": like(adaptive, seconds=30),
        "shared_memory": sgd,
        "numpy_views": sgd,
    },
    "checkpoint_ddp.py": {
        "saved_by_rank_0": adaptive,
        "saved_between_backward_and_step": adaptive,
        "state_dicts_of_rank_0": adaptive,
        "best_kept_in_memory": adaptive,
        "loaded_before_the_first_step": adaptive,
        "loaded_in_mid_run": sgd,
        "loaded_by_rank_0_then_broadcast": adaptive,
        "loaded_with_assign": adaptive,
        "distributed_checkpoint_functions": adaptive,
        "resumed": like(adaptive, stages=resumed("castor", "castor")),
        "resumed: plain, then Castor": like(adaptive, stages=resumed("plain", "castor")),
        "resumed: Castor, then plain": like(adaptive, stages=resumed("castor", "plain")),
        "mapped_file": sgd,
    },
    "compile_ddp.py": {
        "inside": sgd,
        "outside": sgd,
        "in_place": adaptive,
        "in_the_middle": sgd,
        "loss_only": sgd,
        "optimizer_too": like(sgd, exact_at_2=False, reason=UNCOMPILED),
        "whole_step": like(sgd, exact_at_2=False, reason=UNCOMPILED),
        "words": sgd,
    },
    "recompute_ddp.py": {
        "plain": sgd,
        "plain_everywhere": sgd,
        "reentrant": sgd,
        "reentrant_everywhere": sgd,
        "reentrant_twice_in_a_static_graph": sgd,
        "sequential": sgd,
        "gpt_blocks": adaptive,
    },
    "optimizers_ddp.py": {
        "closure_adam": adaptive,
        "closure_sgd": sgd,
        "lbfgs": adaptive,
        "lbfgs_with_line_search": adaptive,
        "global_norm": sgd,
        "lamb": adaptive,
        "muon": adaptive,
        "muon_of_pytorch": like(half, reason="PyTorch's Muon orthogonalizes in bfloat16"),
        "sam": sgd,
        "schedule_free": sgd,
        "prodigy": adaptive,
        "noisy_subclass": sgd,
        "subclass_that_edits_gradients": adaptive,
        "wrapper_around_adam": adaptive,
        "lookahead": adaptive,
    },
    "stepping_ddp.py": {
        "step_hooks": adaptive,
        "state_edited": adaptive,
        "state_cleared": adaptive,
        "group_added_later": adaptive,
        "replaced_in_mid_run": adaptive,
        "one_optimizer_per_parameter": adaptive,
        "stepped_twice": adaptive,
        "stepped_without_gradients": adaptive,
        "inside_backward": like(sgd, aside="the optimizer steps inside backward"),
        "zero_redundancy_of_pytorch": adaptive,
        "plain_function": sgd,
        "copied_settings": adaptive,
    },
    "trainer_ddp.py": {
        "": like(adaptive, ignored=("training_args.bin",), seconds=60),
        "accumulation": like(adaptive, ignored=("training_args.bin",), seconds=60, arguments=("--accumulate", "2")),
        "resumed": like(
            adaptive,
            ignored=("training_args.bin",),
            seconds=60,
            stages=(("plain", ("--steps", "4")), ("castor", ("--steps", "6", "--resume"))),
        ),
    },
    "accelerate_ddp.py": {
        "": like(adaptive, seconds=60),
        "no accumulation": like(adaptive, seconds=60, arguments=("--accumulate", "1")),
    },
    "fabric_ddp.py": {"": like(adaptive, seconds=60)},
    "lightning_ddp.py": {"": like(adaptive, ignored=("best.ckpt", "last.ckpt"), seconds=60)},
    # Single-process scripts
    "gpt.py": {"": adaptive},
    "loops.py": {
        "sgd": sgd,
        "sgd_momentum": sgd,
        "adam": adaptive,
        "adamw_fused": adaptive,
        "double_precision": sgd,
        "clipped_by_norm": sgd,
        "clipped_by_value": sgd,
        "clipped_by_the_loss": sgd,
        "clipped_by_the_batch": like(
            sgd, reason="each rank has a part of the batch, and so another limit", refused="clip the gradients by different limits"
        ),
        "accumulation": sgd,
        "scaler": sgd,
        "several_losses": sgd,
        "plateau_and_early_stop": sgd,
        "two_networks": sgd,
        "ema": sgd,
        "frozen_then_thawed": sgd,
        "closure": sgd,
        "inside_backward": like(sgd, reason="parts of a batch give no whole gradient there", refused="inside a backward"),
        "local_gradients_only": like(sgd, reason="parts of a batch give no whole gradient there", refused="autograd.grad"),
        "sum_of_losses": like(
            agreement,
            reason="a loss is taken for a mean over the batch, a sum is divided by N; Castor says so",
            says="looks like a sum",
        ),
        "sum_of_losses: CASTOR_LOSS=sum": like(sgd, options=("CASTOR_LOSS=sum",)),
        "dropout": like(agreement, reason="each rank draws masks of its own", says="[Dd]ropout"),
        "batch_norm": sgd,
        "models_one_after_another": sgd,
    },
    "tokens.py": {
        name: sgd
        for name in (
            "ignored ignored_accumulated ignored_with_penalty ignored_in_a_whole_part ignored_index_of_its_own "
            "ignored_in_double_precision classes_weighed labels_smoothed labels_smoothed_and_classes_weighed "
            "classes_in_the_second_dimension log_probabilities sum_divided_by_its_count masked_sum loss_for_each_sample"
        ).split()
    }
    | {
        "ignored: CASTOR_LOSS=tokens": like(sgd, options=("CASTOR_LOSS=tokens",)),
        "elements_selected: CASTOR_LOSS=tokens": like(sgd, options=("CASTOR_LOSS=tokens",)),
        "sums_accumulated: CASTOR_LOSS=sum": like(sgd, options=("CASTOR_LOSS=sum",)),
        "sums_accumulated": like(agreement, reason="a sum is taken for a mean; Castor says so", says="looks like a sum"),
        "elements_selected": like(sgd, reason="they might be padding", refused="elements on the ranks.*CASTOR_LOSS=tokens"),
        "padded_to_the_longest": like(sgd, reason="the padding of a part is not the batch's", refused="elements on the ranks"),
        "two_heads": like(sgd, reason="each term would need another weight", refused="adds a mean over targets that are counted"),
        "another_mean_beside": like(
            sgd, reason="each term would need another weight", refused="adds a mean over targets that are counted"
        ),
        "not_counted: CASTOR_LOSS=tokens": like(
            sgd, reason="there is no count", options=("CASTOR_LOSS=tokens",), refused="finds nothing that was counted"
        ),
        "not_counted": like(
            agreement, reason="neither a sum nor a mean: it is taken for a mean, and Castor says so", says="taken for a mean over samples"
        ),
        "contrastive": like(sgd, reason="a part has fewer samples to compare with", refused="compares the samples of a batch"),
    },
    "batch_norm.py": {
        name: sgd
        for name in (
            "convolution_sgd one_dimension three_dimensions vectors tails tail_of_one in_double_precision without_weights "
            "without_running_statistics cumulative_average evaluated frozen accumulated parts_without_labels recomputed "
            "recomputed_reentrantly without_gradients channels_last as_a_function one_batch_on_every_rank "
            "statistics_of_an_average other_norms"
        ).split()
    }
    | {
        "convolution_adamw": adaptive,
        "compiled": like(sgd, seconds=60),
        "sum_of_losses: CASTOR_LOSS=sum": like(sgd, options=("CASTOR_LOSS=sum",)),
        "bfloat16_model": half,
        "autocast": half,
        "scripted": like(sgd, reason="compiled code does not come through Python", refused="code of torch.jit"),
    },
    "batches.py": {
        name: sgd
        for name in (
            "in_order shuffled shuffled_with_a_generator tail_dropped tail_of_odd_length tail_of_one odd_batches "
            "batches_of_one batches_of_three forked_workers persistent_workers spawned_workers iterable_dataset "
            "with_replacement restarted_iterator own_sampler batch_sampler dictionaries loader_without_batching "
            "split_and_subset two_loaders_together evaluation evaluation_in_inference_mode "
            "evaluation_during_the_epoch length_of_a_loader"
        ).split()
    }
    | {
        f"{name}: CASTOR_BATCH=scale": like(
            sgd,
            options=("CASTOR_BATCH=scale",),
            reason="each rank draws its own batches, and a step sees N of them",
            says="each of the . ranks draws its own batches",
            differs="event|printed",
        )
        for name in ("shuffled", "shuffled_with_a_generator", "forked_workers")
    }
    | {
        "in_order: CASTOR_BATCH=scale": like(
            sgd, options=("CASTOR_BATCH=scale",), reason="every rank has the same batches", says="every rank computes the same"
        ),
        "two_loaders_of_odd_sizes": like(
            sgd, reason="parts of one loss must weigh the same in both batches", refused="cannot split them alike"
        )
    },
    "drawn.py": {
        "random_windows": like(agreement, reason="each rank draws its own batches", says="CASTOR_BATCH|batch"),
        "the_same_batch_each_time": like(sgd, reason="every rank holds the same batch"),
        "slices_in_order": like(sgd, reason="every rank holds the same batch"),
    },
    "files.py": {
        "checkpoints": adaptive,
        "best_of_all": sgd,
        "log_as_text": sgd,
        "table_appended_to": like(
            sgd,
            reason="every rank appends its lines to a file of the script's own; Castor says so",
            says="opens .*table.csv for writing",
            differs="^file table.csv",
        ),
        "safetensors": sgd,
        "tensorboard": sgd,
        "arrays": like(sgd, ignored=("head.npy",)),
        "resumed": like(adaptive, stages=resumed("castor", "castor")),
        "resumed: plain, then Castor": like(adaptive, stages=resumed("plain", "castor")),
        "resumed: Castor, then plain": like(adaptive, stages=resumed("castor", "plain")),
    },
    "groups.py": {
        "group_of_one": like(
            sgd, reason="ranks of its own have batches of their own", refused="without --nproc: castor run", seconds=60
        ),
        "spawned": like(sgd, reason="ranks of its own have batches of their own", refused="without --nproc: castor run", seconds=60),
    },
    "unseeded.py": {"": like(agreement, reason="no two runs are alike, but the ranks must be", repeatable=False)},
    "trainer.py": {"": like(adaptive, ignored=("training_args.bin",), seconds=60)},
    "accelerator.py": {"": adaptive},
}


@dataclass(frozen=True)
class Row:
    script: str
    title: str  # the case's name, and after a colon or instead of it a variant's
    expect: Expect = field(compare=False)

    @property
    def case(self):
        """The name that the script knows; empty where it has no cases."""
        name = self.title.partition(":")[0]
        return name if name in cases_in(self.script) else ""

    @property
    def distributed(self):
        return self.script.endswith("_ddp.py")

    @property
    def name(self):
        return f"{self.script} {self.title}" if self.title else self.script

    @property
    def alone(self):
        """Rows that need a process of their own: whole scripts, and cases that Castor may end or leave to PyTorch."""
        return bool(not self.case or self.expect.refused or self.expect.aside or self.expect.stages or self.expect.arguments)

    def tolerance(self, ranks, plugin):
        if not self.expect.repeatable:
            return ANY
        if plugin in ("none", "plain") or (self.distributed and ranks == 2 and self.expect.exact_at_2):
            return EXACT
        return self.expect.tolerance


def rows():
    return [Row(script, case, expect) for script, cases in TABLE.items() for case, expect in cases.items()]


@functools.cache
def cases_in(script):
    """The names and first lines of documentation of the cases that a script declares."""
    with open(os.path.join(SCRIPTS, script)) as file:
        tree = ast.parse(file.read())
    found = {"": (ast.get_docstring(tree) or "").splitlines()[0]}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(ast.unparse(d) == "record.case" for d in node.decorator_list):
            found[node.name] = (ast.get_docstring(node) or "").split("\n")[0]
    return found


def disagreements():
    """Scripts and cases without a row, and rows without a case."""
    found = []
    for script in sorted(name for name in os.listdir(SCRIPTS) if name.endswith(".py") and name not in HELPERS):
        if script not in TABLE:
            found.append(f"{script} has no row in rows.py")
            continue
        declared = set(cases_in(script)) - {""}
        listed = {title.partition(":")[0] for title in TABLE[script]}
        if declared:
            found += [f"{script}: the case {case} has no row" for case in sorted(declared - listed)]
            found += [f"{script}: the row {case} has no case" for case in sorted(listed - declared - {""})]
    found += [f"{script} does not exist" for script in TABLE if not os.path.exists(os.path.join(SCRIPTS, script))]
    return found
