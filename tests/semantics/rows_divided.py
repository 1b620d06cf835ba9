"""The rows of divided.py and divided_ddp.py, whose models several ranks have together under the plugin `hybrid`: each case in each layout."""

from dataclasses import replace

from expect import adaptive, like, sgd
from rows_single import CANCELS

# CASTOR_TP, CASTOR_PP, and with how many ranks: the others are replicas.
LAYOUTS = {"TP=2": (2, 4), "PP=2": (2, 4), "TP=2 PP=2": (4,), "TP=4": (4,), "PP=4": (4,)}
EARLY = {"PP=2 MICROBATCHES=4": (2, 4), "TP=2 PP=2 MICROBATCHES=4": (4,), "PP=4 MICROBATCHES=8": (4,)}  # 1F1B, where a call returns the loss
ADAPTIVE = "gpt_adamw_clipped", "accumulated"
OF_KEYS = "hf_bert", "hf_vit"  # gradients of the keys' biases cancel
CASES = (
    "gpt_sgd gpt_adamw_clipped loss_outside evaluated accumulated batches_of_other_sizes dropout_between_blocks dropout_within_blocks batch_norms recomputed "
    "gone_back_twice two_calls_for_a_backward calls_that_nobody_goes_back_from masked_and_scaled sum_of_losses mean_of_elements losses_of_samples logits_are_used_late "
    "recomputed_by_its_own wants_backward_itself encoder frozen_first_blocks skips_a_block remembers_each_block layers_are_exchanged hf_gpt2 hf_gpt2_checkpoints hf_gpt2_biases hf_llama hf_bert hf_t5 hf_vit wide_blocks"
).split()
OF_LOSSES = (  # which the model's call returns, and from which alone the script goes back
    "gpt_sgd gpt_adamw_clipped evaluated accumulated batches_of_other_sizes gone_back_twice masked_and_scaled sum_of_losses mean_of_elements losses_of_samples "
    "hf_gpt2 hf_gpt2_checkpoints hf_gpt2_biases hf_llama hf_bert hf_t5 hf_vit"
).split()
OPTIONS = {"wide_blocks": ("CASTOR_AUDIT=1",), "one_rank_calls_alone": ("CASTOR_TIMEOUT=5",)}  # so the second step of wide blocks is divided
# What a line says where a model is computed whole.
WHOLE = {
    "batch_norms": {"": r"computed whole on every rank.*\(Perceptrons: has a batch norm"},
    "frozen_first_blocks": {"PP": r"computed whole on every rank.*\(Perceptrons: has nothing to train in layers 0 to [01] "},
    "layers_are_exchanged": {"PP=4": r"computed whole on every rank.*\(Perceptrons: has no stages: 4 parts of a pipeline "},
    "skips_a_block": {"PP": r"computed whole on every rank.*\(Skipping: .*calls layer 3 of its chain"},
    "recomputed_by_its_own": {"PP": r"computed whole on every rank.*\(Recomputed: .*calls layer 0 of its chain without gradients"},
    "remembers_each_block": {"PP": r"computed whole on every rank.*\(Remembering: .*computes \(.*\) with the output of a layer of an earlier"},
}


OF_RANKS = (
    "gpt_adamw_clipped loss_outside batches_of_other_sizes dropout_between_blocks dropout_within_blocks batch_norms recomputed encoder frozen_first_blocks "
    "recomputed_by_its_own wants_backward_itself remembers_each_block hf_gpt2 hf_llama hf_bert hf_t5 wide_blocks accumulated evaluated_by_rank_0 one_rank_calls_alone results_one_after_another parameters_in_the_loss "
    "some_results_unused counts_its_calls gradients_of_arguments hooks_of_the_script late_change two_models models_that_share_a_layer vocabulary_of_embeddings"
).split()
# Batches of ranks in microbatches of their rows.
EARLY_OF_RANKS = {"PP=2 MICROBATCHES=6": (2, 4), "TP=2 PP=2 MICROBATCHES=8": (4,), "PP=4 MICROBATCHES=8": (4,)}
IN_PARTS = (
    "masked_and_scaled a_rank_without_targets sum_of_losses mean_of_elements losses_of_samples losses_weighed_by_rank losses_weighed_anew losses_weighed_anew_late "
    "logits_are_used_late asks_for_gradients_within noise_of_samples samples_beside_each_other results_of_other_kinds one_row scaled_by_a_scaler"
).split()
IN_ONE = {"samples_beside_each_other": "Contrasting"}  # microbatch
OF_LOSSES_OF_RANKS = (
    "gpt_adamw_clipped batches_of_other_sizes hf_gpt2 hf_llama hf_bert hf_t5 accumulated evaluated_by_rank_0 parameters_in_the_loss masked_and_scaled "
    "a_rank_without_targets sum_of_losses mean_of_elements losses_of_samples losses_weighed_by_rank results_of_other_kinds one_row scaled_by_a_scaler"
).split()
WHOLE_OF_RANKS = {
    **{case: WHOLE[case] for case in ("batch_norms", "frozen_first_blocks", "recomputed_by_its_own", "remembers_each_block")},
    "asks_for_gradients_within": {"": r"computed whole on every rank.*\(Asking: asks for gradients inside of it"},
    "counts_its_calls": {"": r"computed whole on every rank.*\(Counting: "},
    "gradients_of_arguments": {"": r"computed whole on every rank.*\(Perceptrons: gets an argument that requires a gradient"},
    "hooks_of_the_script": {"": r"computed whole on every rank.*\(Perceptrons: a hook of the script looks into blocks.1"},
}
REFUSED = {
    "results_one_after_another": {"PP": r"goes once more through the results of a model whose gradients were summed"},
    "logits_are_used_late": {"MICROBATCHES": r"goes back from more than the loss that the model returns"},
    "losses_weighed_anew_late": {"MICROBATCHES": r"weigh otherwise beside each other than in the calls before"},
    "one_rank_calls_alone": {"": r"make each call together whose gradients are summed, and not all of them came"},
}


def row_of(case, layout, ranks, whole, of_losses):
    shards = () if "PP" in layout else ("CASTOR_ZERO_STAGE=2",)
    options = (*(f"CASTOR_{word}" for word in layout.split()), *shards, *OPTIONS.get(case, ()))
    says, refused = (next((pattern for part, pattern in those.get(case, {}).items() if part in layout), "") for those in (whole, REFUSED))
    expect = adaptive if case in ADAPTIVE else like(sgd, tolerance=replace(CANCELS, floor=1e-6)) if case in OF_KEYS else sgd
    early, divided = not says and not refused and "MICROBATCHES" in layout and case in of_losses, not says
    if not says and case in IN_ONE and "MICROBATCHES" in layout:
        says = rf"CASTOR_MICROBATCHES: the batch of each rank is one microbatch \({IN_ONE[case]}: "
    return like(expect, plugin="hybrid", only_ranks=ranks, options=options, says=says, exact_at_2=False, divided=divided, in_1f1b=early, refused=refused)


def rows_of(cases, whole, layouts, of_losses=()):
    return {f"{case}: {layout}": row_of(case, layout, ranks, whole, of_losses) for case in cases for layout, ranks in layouts.items()}


ALONE = like(sgd, plugin="hybrid", only_ranks=(2,), one_rank=True, options=("CASTOR_TP=2",), refused="divide a model over ranks, and this is one process")
TABLE = {
    "divided.py": {**rows_of(CASES, WHOLE, {**LAYOUTS, **EARLY}, OF_LOSSES), "gpt_adamw_clipped: one process": ALONE},
    "divided_ddp.py": {
        **rows_of([*OF_RANKS, *IN_PARTS], WHOLE_OF_RANKS, EARLY_OF_RANKS, OF_LOSSES_OF_RANKS), **rows_of(OF_RANKS, WHOLE_OF_RANKS, LAYOUTS),
        **rows_of(IN_PARTS, WHOLE_OF_RANKS, {"PP=2": (2,)}),
    },
}
