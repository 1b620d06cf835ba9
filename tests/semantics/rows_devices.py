"""Which rows run.py --devices has: each rank of a DDP script, or of `--nproc`, trains on a simulated device of its own, over NCCL."""

from dataclasses import replace

# On devices CASTOR_BATCH=loader is refused. By script, or script and case: why it is not here, beside those that plain PyTorch cannot run there.
LEFT_OUT = {
    **dict.fromkeys(("gradients_ddp.py:gradient_of_the_input_only", "gradients_ddp.py:double_backward"),
                    "on_device.py copies the input that they ask the gradient of"),
    **dict.fromkeys(("batch_norm.py:compiled", "chance.py:compiled"), "the compiler looks into the numbers of the simulation"),
    "chance.py:dropout_in_scripted_code": "TorchScript's compiler makes kernels of its own, which nobody computes",
    "loops.py:sparse_gradients": "nobody computes sparse tensors of the simulation",
    "sync_ddp.py:sparse_gradients": "NCCL sums no sparse tensors",
    "construct_ddp.py:forked_while_it_is_made": "a process that uses a device cannot be forked",
    "storages_ddp.py:model_of_rank_0": "plain ranks wait for each other over NCCL for ever",
    "storages.py:swapped_on_conversion": "PyTorch refuses to swap a parameter that something refers to (docs/device-ranks.md)",
    "taken.py:penalty_of_slopes": "the stride of a gradient in a dimension of one element is the bucket's",
    "sync_ddp.py:sharded_by_pytorch": "fully_shard finds tensors of the host",
    "copies_ddp.py:sizes_of_what_is_saved": "files of gradients have other sizes: these lie in buckets (docs/device-ranks.md)",
    "checkpoint_ddp.py:saved_between_backward_and_step": "files of gradients have other sizes: these lie in buckets (docs/device-ranks.md)",
}
# By script and case: the refusal on devices; "": what CPUs refuse is served there.
REFUSED = {
    "storages.py:other_type_under_the_optimizer": "",
    "storages_ddp.py:states_loaded_on_rank_0": "load them on every rank",
    "accumulate_ddp.py:dropped_by_hand": "between the micro-steps of CASTOR_ACCUMULATE",
    "accumulate_ddp.py:zeroed_by_hand": "between the micro-steps of CASTOR_ACCUMULATE",
}
# Refused, or left to PyTorch, because owners keep data: under ddp nobody does.
BY_OWNERS = ("storages_ddp.py:states_loaded_on_rank_0", "storages_ddp.py:apart_without_sync", "clip_ddp.py:another_limit_on_each_rank",
             "gradients_ddp.py:step_on_noise_of_one_rank")
SCRIPTS = ("loops_ddp.py", "clip_ddp.py", "gradients_ddp.py", "optimizers_ddp.py", "sync_ddp.py", "checkpoint_ddp.py", "frozen_ddp.py", "gan_ddp.py",
           "weights_ddp.py", "stepping_ddp.py", "amp_ddp.py", "recompute_ddp.py", "accumulate_ddp.py", "construct_ddp.py", "copies_ddp.py", "storages_ddp.py",
           "gpt_ddp.py", "divided_ddp.py", "nanogpt_ddp.py", "trainer_ddp.py", "accelerate_ddp.py", "fabric_ddp.py", "lightning_ddp.py")
# Of one process, under --nproc.
SINGLE = ("accelerator.py", "accumulate.py", "audited.py", "batch_norm.py", "batches.py", "chance.py", "construct.py", "divided.py", "drawn.py", "files.py", "gpt.py", "in_batch_losses.py",
          "kept.py", "lazies.py", "loops.py", "samplers.py", "shapes.py", "storages.py", "survivors.py", "taken.py", "tokens.py", "trainer.py", "unseeded.py", "without_optimizer.py", "writes.py")
# Lines of Castor's on devices alone: of any script, and by script.
HELD = "keeps optimizer states that another rank has"
BUDGET = "CASTOR_DEVICE_BUDGET="  # what would do, under one that is smaller than the largest parameter needs
MAY_SAY = {  # a kernel of attention, or of recurrent layers, draws the numbers of a dropout itself
    "chance.py": ("by rows it has another result",),
    "divided.py": (r"\(Sequential: by rows it has another result", r"\((GPT2LMHeadModel|BertForMaskedLM|T5ForConditionalGeneration): by rows it has another result"),
    "divided_ddp.py": (r"CASTOR_MICROBATCHES: .*\((Sequential|GPT2LMHeadModel|BertForMaskedLM|T5ForConditionalGeneration): divided it has another result",),
}
DRAWN_IN_KERNELS = tuple(f"divided.py:{case}" for case in ("encoder", "hf_gpt2", "hf_gpt2_checkpoints", "hf_gpt2_biases", "hf_bert", "hf_t5"))  # so they are computed whole
SHORT = {
    "loops.py": ("adam", "sgd_momentum", "clipped_by_norm", "scaler", "dropout", "batch_norm", "two_networks"),
    "loops_ddp.py": ("adam", "sgd_momentum", "two_models"),
    "clip_ddp.py": ("norm", "norm_logged_by_rank_0"),
    "gradients_ddp.py": ("zeroed_in_place", "kept_while_zeroed_in_place", "edited_in_place", "two_losses_one_step"),
    "frozen_ddp.py": ("thawed_with_a_new_wrapper", "unused_on_some_ranks"),
    "checkpoint_ddp.py": ("saved_by_rank_0",),
    "divided.py": ("gpt_adamw_clipped: PP=2 MICROBATCHES=4", "dropout_between_blocks: PP=2"),
    "divided_ddp.py": ("gpt_adamw_clipped: PP=2",),
}


def on_devices(row):
    if f"{row.script}:{row.case}" in DRAWN_IN_KERNELS:
        row = replace(row, expect=replace(row.expect, divided=False, in_1f1b=False))
    refused = REFUSED.get(f"{row.script}:{row.case}")
    return row if refused is None else replace(row, expect=replace(row.expect, refused=refused))


def under(row, plugin):
    return replace(row, expect=replace(row.expect, refused="", aside="", says="")) if plugin == "ddp" and f"{row.script}:{row.case}" in BY_OWNERS else row


def has(row):
    placed = any(option.startswith(("CASTOR_OFFLOAD_DIR", "CASTOR_BATCH=loader", "CASTOR_MEMORY_BUDGET")) for option in row.expect.options)
    return row.script in (*SCRIPTS, *SINGLE) and not placed and not row.expect.one_rank and row.script not in LEFT_OUT and f"{row.script}:{row.case}" not in LEFT_OUT


def in_short(row):
    return row.title in SHORT.get(row.script, ())
