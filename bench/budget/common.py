"""What bench/budget and bench/policy share: the GPT that both train, and what the disk below a folder moves."""
import json
import os
import statistics
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TRAIN = os.path.join(HERE, "train_ddp.py")
PARAMETERS = {"8M": 7.4e6, "60M": 60e6, "150M": 145e6}
MODEL_BYTES = 16  # of a parameter: itself, its gradient, two states of Adam, four bytes each
RANKS = 2


def disk_bandwidth(folder):
    """The fastest of bench/disk's ways with O_DIRECT, by its median: bytes a second read, written, and both at once."""
    subprocess.run(["make", "-C", ROOT, "build/bin/bench-disk"], check=True, stdout=subprocess.DEVNULL)
    out = subprocess.run([os.path.join(ROOT, "build", "bin", "bench-disk"), folder, "256", "3"], capture_output=True, text=True,
                         check=True, timeout=300).stdout
    rates = {}
    for sample in map(json.loads, out.splitlines()):
        rates.setdefault(sample["name"], []).append(sample["bytes"] / sample["seconds"])
    return {kind: round(max(statistics.median(rate) for name, rate in rates.items() if name.startswith(f"direct {kind}")))
            for kind in ("read", "write", "both")}
