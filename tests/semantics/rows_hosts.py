"""What rows of run.py --hosts show otherwise than on one host, and which of them the short length has."""

from dataclasses import replace

from expect import ADAPTIVE
from rows_devices import HELD

LEFT_OUT = {
    **dict.fromkeys((f"storages.py:{case}" for case in "other_strides parts_of_one_tensor memory_of_numpy part_beside_the_whole".split()), "memory that something else can reach"),
    "accelerate_ddp.py": "prints on each node",
    **dict.fromkeys(("lightning_ddp.py", "fabric_ddp.py"), "wants the number of nodes"),
}
MAY_SAY = (HELD, "gradients and parameters stay on every node: (CASTOR_OFFLOAD_DIR|a memory budget)")
# By script and case: the refusal on several nodes.
ELSEWHERE = "gives a parameter of shape .* memory that something else can reach|the nodes disagree"
REFUSED = {
    **dict.fromkeys(
        (f"storages_ddp.py:{case}" for case in
         "other_memory_on_rank_0 other_values_on_each_rank memory_of_numpy_on_rank_1 part_beside_the_whole states_loaded_on_rank_0".split()), ELSEWHERE),
    **dict.fromkeys(("weights_ddp.py:data_replaced_by_views_of_one_buffer", "copies_ddp.py:shared_memory"), ELSEWHERE),
}
ADAPTS = ("storages_ddp.py:states_set_to_zero", "storages_ddp.py:kept_states")
SHORT = {
    "clip_ddp.py": ("another_limit_on_each_rank",),
    "loops_ddp.py": ("sgd_momentum: on disk",),
    "storages_ddp.py": ("kept_states", "states_set_to_zero", "memory_of_numpy_on_rank_1"),
    "sync_ddp.py": ("local_then_synchronized",),
}


def on_hosts(row, devices):
    """Whose ranks share less: what they say of that (in debug lines) is not asked for. Sums are added in another order. devices: no store keeps what the ranks have."""
    name, expect = f"{row.script}:{row.case}", row.expect
    says = "" if "CASTOR_LOG_LEVEL=debug" in expect.options else expect.says
    return replace(row, expect=replace(expect, says=says, refused=expect.refused if devices else REFUSED.get(name, expect.refused), tolerance=ADAPTIVE if name in ADAPTS else expect.tolerance))


def has(row):
    left_out = row.script in LEFT_OUT or f"{row.script}:{row.case}" in LEFT_OUT
    return not left_out and (row.distributed or not row.expect.one_rank)


def in_short(row):
    return row.title in SHORT.get(row.script, ())
