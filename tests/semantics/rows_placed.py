"""Rows of other tables once more, with chunks that lie on disk alone while they are not used.

`on disk`: all of them, whatever they are. `under a budget`: as many as it has no room for. `one process`: which shares
nothing with others, and places its data all the same; what it shows is bitwise that of plain PyTorch."""

from expect import like

SMALL = "CASTOR_CHUNK_SIZE=64K"
ON_DISK = (SMALL, "CASTOR_PLACEMENT=static", "CASTOR_SHARD_PARAM_FRAC=1", "CASTOR_OFFLOAD_OPTIM_FRAC=1", "CASTOR_OFFLOAD_PARAM_FRAC=1")
BUDGETS = {"gpt_ddp.py": "80M", "gpt.py": "64M"}

DISTRIBUTED = {
    "gpt_ddp.py": ("",),
    "loops_ddp.py": ("sgd_momentum", "adam_amsgrad", "adafactor", "groups", "learning_rate_tensor", "two_models"),
    "clip_ddp.py": ("norm_sgd", "value"),
    "gradients_ddp.py": ("never_zeroed", "kept_in_a_list", "edited_in_place", "two_backwards_of_one_graph"),
    "accumulate_ddp.py": ("sgd", "clipped_by_norm"),
    "amp_ddp.py": ("overflow_on_one_rank", "bfloat16_model_sgd"),
    "weights_ddp.py": ("ema_swapped_in_and_out", "edited_through_data", "data_replaced", "tied_by_data"),
    "frozen_ddp.py": ("thawed_under_the_same_wrapper", "unused_on_some_ranks"),
    "sync_ddp.py": ("no_sync", "local_then_synchronized"),
    "copies_ddp.py": ("deepcopy_of_the_optimizer", "forked_workers_that_run_the_model"),
    "checkpoint_ddp.py": ("loaded_in_mid_run", "resumed"),
    "optimizers_ddp.py": ("closure_sgd", "lookahead"),
}
ALONE = {
    "gpt.py": ("",),
    "lazies.py": ("shapes_by_the_first_batch", "shapes_by_a_first_run", "one_layer_is_never_reached", "from_the_meta_device"),
    "storages.py": (
        "half_and_back", "other_strides", "parts_of_one_tensor", "memory_of_numpy", "part_beside_the_whole", "kept_states", "other_type",
        "other_type_under_the_optimizer", "exception_in_backward"),
    "loops.py": ("sgd_momentum", "adam", "double_precision", "sparse_gradients", "stepped_through_the_step", "clipped_by_norm", "clipped_by_the_batch", "accumulation", "scaler",
                 "two_networks", "ema", "frozen_then_thawed", "closure", "inside_backward", "inside_backward_by_earlier_hooks", "local_gradients_only"),
}
# Under a budget there are no audits: what survives a step is right by the trials alone.
SURVIVES = {
    "survivors.py": ("centre_of_a_teacher", "codebook", "queue_with_a_pointer", "codebook_in_forward"),
    "kept.py": ("samples_counted_in_an_attribute", "graph_in_an_attribute"),
    "taken.py": ("adapted_in_the_second_order",),
}
SAYS = {"sparse_gradients": "its gradients are sparse", "stepped_through_the_step": "it is computed from other tensors"}


def placed(table):
    """The table, with these rows among its own."""
    found = {script: dict(rows) for script, rows in table.items()}

    def add(script, case, what, options, **changes):
        row = table[script][case]
        found[script][f"{case}: {what}" if case else what] = like(row, options=(*row.options, *options), **changes)

    for script, cases in DISTRIBUTED.items():
        for case in cases:
            add(script, case, "on disk", ON_DISK)
    for script, cases in ALONE.items():
        for case in cases:
            add(script, case, "one process, on disk", ON_DISK, one_rank=True, refused="", reason="", says=SAYS.get(case, ""))
    for script, budget in BUDGETS.items():
        add(script, "", "under a budget", (SMALL, f"CASTOR_MEMORY_BUDGET={budget}"), one_rank=script in ALONE, says="leave memory slowly")
    for script, cases in SURVIVES.items():
        for case in cases:
            says = "|".join(filter(None, ("no room for a second copy", table[script][case].says)))
            add(script, case, "under a budget", ("CASTOR_MEMORY_BUDGET=64M",), says=says)
    return found
