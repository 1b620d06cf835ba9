"""Rows of scripts of one process whose batches are split at the model's boundary (CASTOR_BATCH=model): every case that another way of
splitting trains, and most of what it refuses."""

from dataclasses import replace

from cases import cases_in
from expect import SGD, adaptive, like, sgd

OPTION = "CASTOR_BATCH=model"
SCRIPTS = (
    "accumulate.py", "audited.py", "batch_norm.py", "batches.py", "chance.py", "drawn.py", "in_batch_losses.py", "lazies.py", "loops.py", "shapes.py", "tokens.py",
    "without_optimizer.py",
)
# What is refused here, too: (script, case): pattern of the message; what it says of the other way of splitting.
REFUSED = {
    ("loops.py", "inside_backward"): "inside a backward",
    ("loops.py", "inside_backward_by_earlier_hooks"): "inside a backward",
    ("loops.py", "recomputed_twice"): "two gradients in one backward",
    ("loops.py", "sparse_gradients"): "is sparse: make it dense",
    ("loops.py", "stepped_through_the_step"): "it is computed from other tensors",
}
LEFT_OUT = {
    ("audited.py", "larger_batches_are_refused"),  # by the script, which can train on parts of its batches only
    ("loops.py", "local_gradients_only"),  # without an optimizer nothing is shared
}
CANCELS = replace(SGD, name="sgd, gradients that cancel", noise=1e-6)
# Losses of which the gradient of a last bias is rounding noise.
CANCELLING = {("in_batch_losses.py", case) for case in ("barlow_twins", "vicreg", "hardest_triplets", "negatives_drawn_from_the_batch")}
SAYS = "computed whole on every rank"
WHOLE = {
    ("batch_norm.py", "scripted"), ("batch_norm.py", "scripted_after_others"), ("survivors.py", "codebook_in_forward"),
    ("survivors.py", "attention_over_the_batch"), ("survivors.py", "scales_set_in_the_first_forward"),
    ("survivors.py", "calls_counted_in_a_variable"),
}  # and says so
REASON = "the model computes its rows of each batch, which are gathered"


def _at_boundary(script, case, expect):
    options = (*expect.options, OPTION)
    refused = REFUSED.get((script, case), "")
    if (script, case) in CANCELLING:
        expect = like(sgd, tolerance=CANCELS)
    elif expect.refused and not refused:
        expect = sgd
    return like(expect, options=options, refused=refused, says=SAYS if (script, case) in WHOLE else "", says_not="", reason=REASON)


SURVIVORS = "survivors.py"
WITH_ADAM = ("codebook", "beta_by_a_controller", "trust_in_a_frozen_teacher")
# Whose batches no DataLoader draws: at the boundary without the option.
BY_HAND = (
    "centre_of_both_views_at_once", "replayed_outputs", "weights_for_multinomial", "hard_examples", "moments_of_inputs", "rows_that_are_dead", "rows_of_half_a_batch",
    "seeds_of_perturbations", "better_of_two", "mistakes_of_a_perceptron", "length_of_the_next_batch", "norms_for_a_limit", "calls_counted_in_an_object",
)


def _survivors():
    """What lives on after a step, and no gradient shows."""
    return {
        f"{case}: {OPTION}": _at_boundary(SURVIVORS, case, adaptive if case in WITH_ADAM else sgd)
        for case in filter(None, cases_in(SURVIVORS))
    } | {case: like(sgd, reason=REASON) for case in BY_HAND}


def divided(table):
    """The table with these rows."""
    return {SURVIVORS: _survivors()} | {
        script: cases
        | {
            f"{case}: {OPTION}": _at_boundary(script, case, expect)
            for case, expect in cases.items()
            if script in SCRIPTS and case and ":" not in case and (script, case) not in LEFT_OUT
        }
        for script, cases in table.items()
    }
