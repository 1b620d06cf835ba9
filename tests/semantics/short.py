"""What the short length has of the suite (docs/testing.md): a row stays when it would catch a defect that no other row that
stays catches. The default is to stay: what is left out is named here, with the rows of another script that stand for it; and where
many cases of a script share a process, some stand for all."""
import collections

AT_4 = ("clip_ddp.py",)  # the order of sums depends on the number of ranks; printed, collectives and nodes have 4 as well
# The other plugins are presets of the same engine: one script each shows that its name still leads there, in what it is about.
# The suites rearranged, printed, precision and nodes have them too.
OTHERS = {"ddp": ("loops.py",), "zero1": ("optimizers_ddp.py",), "zero2": ("gradients_ddp.py",), "none": ("gpt.py",), "fsdp": ("loops_ddp.py",)}
# Each spawned worker imports PyTorch. batches.py's spawned_workers stands for these, their kin in forked workers for the rest of each.
SPAWNED = ("augmented_by_spawned_workers", "spawned_and_persistent", "stream_of_spawned_workers", "spawned_collation")
PLACED = ("loops.py", "lazies.py", "gradients_ddp.py")  # one process, and ranks that share
# Of the cases of a script that share a process: so many stay, and of the rest every sixth. Scripts list cases of a kind together,
# so a kind of six and more stays.
CASES, EVERY = 4, 6
STAY = ("spawned_workers",)
CASES_OF_OTHERS = 4  # with other plugins
# (script, sort or title of its row): the script whose row comes through the same code.
STAND_INS = {
    ("gradients_ddp.py", "refused"): "clip_ddp.py",  # gradients that are no longer equal
    ("audited.py", "refused"): "in_batch_losses.py",  # the audit of split batches
    ("accumulate_ddp.py", "aside"): "sync_ddp.py",
    ("checkpoint_ddp.py", "stages"): "nanogpt_ddp.py",
    ("trainer_ddp.py", "stages"): "nanogpt_ddp.py",
    ("trainer_ddp.py", "arguments"): "lightning_ddp.py",
    ("accelerate_ddp.py", "arguments"): "lightning_ddp.py",
    ("accelerate_ddp.py", ""): "lightning_ddp.py",  # another library that wraps the model; trainer.py is made of accelerate
    ("trainer_ddp.py", ""): "lightning_ddp.py",
    ("accelerator.py", ""): "trainer.py",  # which is made of it
    ("fabric_ddp.py", ""): "lightning_ddp.py",  # which is made of it
    ("gpt_ddp.py", "small chunks on disk"): "gpt_ddp.py",
    ("gpt_ddp.py", "on disk"): "gradients_ddp.py",
    ("nanogpt_ddp.py", ""): "nanogpt_ddp.py",  # in two stages
    ("files.py", "stages"): "nanogpt_ddp.py",
    ("in_batch_losses.py", "each_for_itself"): "loops.py",
    ("tokens.py", "refused"): "in_batch_losses.py",
    ("tokens.py", "says_not"): "tokens.py",
    ("batches.py", "refused"): "chance.py",
    ("storages.py", "refused"): "loops.py",
    ("drawn.py", "options"): "batches.py",  # CASTOR_BATCH=scale
    ("stepping_ddp.py", "aside"): "sync_ddp.py",
    ("construct.py", "options"): "construct_ddp.py",
    ("gpt.py", "one process, on disk"): "loops.py",
    ("gpt.py", "under a budget"): "gpt_ddp.py",
    ("kept.py", "options"): "survivors.py",
    ("taken.py", "options"): "survivors.py",
}


# Of divided.py and divided_ddp.py, with two ranks, and some of the first in both ways with four: the others are of the same kinds.
DIVIDED = {
    "divided.py": ("gpt_adamw_clipped", "evaluated", "dropout_within_blocks", "recomputed", "remembers_each_block", "hf_gpt2", "wide_blocks"),
    "divided_ddp.py": ("gpt_adamw_clipped", "dropout_within_blocks", "recomputed", "accumulated", "evaluated_by_rank_0", "counts_its_calls", "two_models"),
}
BOTH_WAYS = [f"{case}: TP=2 PP=2" for case in ("dropout_within_blocks", "hf_gpt2")]
IN_1F1B = {"divided.py": ("masked_and_scaled", "hf_gpt2"), "divided_ddp.py": ("masked_and_scaled",)}  # in place of these:
NOT_IN_TURN = ("evaluated: PP=2", "hf_gpt2: PP=2")
OF_STAGES = ("wide_blocks",)  # whose other layouts show what smaller models do


def stays(plugin, ranks, row, place, first):
    """`place`: among the rows of the script with this plugin and number of ranks. `first`: of each sort of each script the run, a title
    or what rows share a process by, that came first."""
    if row.expect.plugin and row.case in OF_STAGES:
        return plugin == "gemini" and row.title.endswith(": PP=2") and ranks == 2
    if "MICROBATCHES" in row.title:
        return plugin == "gemini" and row.case in IN_1F1B[row.script] and ranks == 2
    if row.expect.plugin:
        return plugin == "gemini" and row.title not in NOT_IN_TURN and row.case in DIVIDED[row.script] and (ranks == 2 or row.script == "divided.py" and row.title in BOTH_WAYS)
    if plugin != "gemini":
        return ranks <= 2 and row.script in OTHERS[plugin] and not row.sort and place < CASES_OF_OTHERS
    if ranks > 2:
        return row.script in AT_4 and not row.sort
    if row.case and not row.alone and place >= CASES and place % EVERY and row.case not in STAY:
        return False
    if row.case in SPAWNED or (row.script, row.sort) in STAND_INS or (row.script, row.title) in STAND_INS:
        return False
    run = row.title if row.alone else row.expect.options
    return first.setdefault((row.script, row.sort), run) == run and (row.sort != "placed" or row.script in PLACED)


def in_short(plan):
    """Of a plan of (plugin, ranks, row)."""
    first, places = {}, collections.Counter()
    found = []
    for plugin, ranks, row in plan:
        where = plugin, ranks, row.script
        if stays(plugin, ranks, row, places[where], first):
            found.append((plugin, ranks, row))
        places[where] += 1
    scripts = {row.script for _, _, row in found}
    assert {row.case for _, _, row in plan} >= set(SPAWNED), "a case of SPAWNED is gone"
    assert scripts >= set(STAND_INS.values()) | set(PLACED), "what stands in is left out itself"
    return found
