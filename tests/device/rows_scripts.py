"""Which scripts of tests/scripts run.py trains on a device (on_device.py), and with how much of its memory."""
import rows
import rows_single

# By script, or script and case.
LEFT_OUT = {
    "process_groups.py": "its processes train, each by itself",
    "unseeded.py": "no two runs are alike",
    **dict.fromkeys(("trainer.py", "accelerator.py"), "they choose the CPU themselves"),
    "loops.py:sparse_gradients": "no numbers for sparse tensors",
    "audited.py:larger_batches_are_refused": "it raises where castor run starts it",
    "without_optimizer.py:tensors_alone": "it has no module that .cuda() would move",
    **dict.fromkeys(("storages.py:memory_of_numpy", "storages.py:made_from_numpy", "files.py:arrays", "writes.py:by_hand"),
                    "numpy has the memory of parameters, which is the host's"),
}
SHORT = (
    (rows.SHARES[0], ("loops.py:adam", "files.py:checkpoints")),
    (rows.SHARES[1], ("storages.py:parts_of_one_tensor", "storages.py:kept_states")),
    (rows.SHARES[2], ("loops.py:sgd_momentum", "loops.py:clipped_by_norm")),
)
# On devices that plain PyTorch overflows: a device must still hold a segment of PyTorch's allocator, of 20 MiB, beside the budget.
LARGE = "gpt.py", "loops.py:adam", "loops.py:double_precision", "files.py:checkpoints"


def words():
    """Of the scripts of one process; titles of rows may say more than a case's name, after a colon."""
    found = dict.fromkeys(f"{script}:{title.partition(':')[0]}".rstrip(":") for script, titles in rows_single.TABLE.items() for title in titles)
    return [word for word in found if word not in LEFT_OUT and word.partition(":")[0] not in LEFT_OUT]


def short():
    return [(device, word) for device, some in SHORT for word in some]


def everything():
    found = [(rows.SHARES[number % len(rows.SHARES)], word) for number, word in enumerate(words())]
    return found + [(rows.SMALL, word) for word in LARGE]
