"""Which rows of DDP scripts run.py --devices has: each rank trains on a simulated device of its own, over NCCL."""

# By script, or script and case: why it is not here.
LEFT_OUT = {
    **dict.fromkeys(("gradients_ddp.py:gradient_of_the_input_only", "gradients_ddp.py:double_backward"),
                    "on_device.py copies the input that they ask the gradient of"),
    "sync_ddp.py:sparse_gradients": "NCCL sums no sparse tensors",
    "sync_ddp.py:sharded_by_pytorch": "fully_shard finds tensors of the host",
    "checkpoint_ddp.py:saved_between_backward_and_step": "files of gradients have other sizes: these lie in buckets (docs/device-ranks.md)",
}
SCRIPTS = ("loops_ddp.py", "clip_ddp.py", "gradients_ddp.py", "optimizers_ddp.py", "sync_ddp.py", "checkpoint_ddp.py", "frozen_ddp.py", "gan_ddp.py",
           "weights_ddp.py", "stepping_ddp.py")
SHORT = {
    "loops_ddp.py": ("adam", "sgd_momentum", "two_models"),
    "clip_ddp.py": ("norm", "norm_logged_by_rank_0"),
    "gradients_ddp.py": ("zeroed_in_place", "kept_while_zeroed_in_place", "edited_in_place", "two_losses_one_step"),
    "frozen_ddp.py": ("thawed_with_a_new_wrapper", "unused_on_some_ranks"),
    "checkpoint_ddp.py": ("saved_by_rank_0",),
}


def has(row):
    placed = any(option.startswith("CASTOR_OFFLOAD_DIR") for option in row.expect.options)
    return row.script in SCRIPTS and not placed and row.script not in LEFT_OUT and f"{row.script}:{row.case}" not in LEFT_OUT


def in_short(row):
    return row.case in SHORT.get(row.script, ()) and row.title == row.case
