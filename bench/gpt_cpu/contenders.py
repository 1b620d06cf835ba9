"""Who is measured, and how each is started."""

import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import jobs

HERE = os.path.dirname(os.path.abspath(__file__))
TRAIN_DDP = os.path.join(HERE, "train_ddp.py")
TRAIN_PEERS = os.path.join(HERE, "train_peers.py")

# How glibc treats freed blocks. `default` keeps many of them; `returned` gives every large block back to the system.
# Where `castor run` chooses settings of its own for glibc, those are taken for `returned`.
RETURNED = {"MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "1048576"}


class Contender:
    """plugin: None, or the plugin of `castor run`; options: its own, NAME=VALUE. peak: bytes per parameter and rank that
    it may need, for the check of free memory. tolerance: largest difference from DDP's losses (0: bit for bit)."""

    def __init__(self, name, label, script, arguments=(), plugin=None, options=(), interpreter="torch", peak=26,
                 tolerance=1e-3):
        self.name, self.label, self.script, self.arguments = name, label, script, list(arguments)
        self.plugin, self.options, self.interpreter = plugin, options, interpreter
        self.peak, self.tolerance = peak, tolerance

    def mallocs(self):
        return ["castor"] if self.plugin else ["default", "returned"]


CONTENDERS = {c.name: c for c in (
    Contender("ddp", "DDP", TRAIN_DDP, tolerance=0),
    Contender("ddp_view", "DDP, `gradient_as_bucket_view`", TRAIN_DDP, ["--bucket-view"], tolerance=0),
    Contender("none", "`castor run --plugin none`", TRAIN_DDP, plugin="none", tolerance=0),
    Contender("castor", "`castor run --plugin gemini`", TRAIN_DDP, plugin="gemini", tolerance=1e-5),
    Contender("castor_ddp", "`castor run --plugin ddp`", TRAIN_DDP, plugin="ddp", tolerance=1e-5),
    Contender("castor_bf16", "gemini, `CASTOR_PRECISION=bf16`", TRAIN_DDP, plugin="gemini", options=["CASTOR_PRECISION=bf16"],
              tolerance=0.02),
    Contender("castor_return", "gemini, `CASTOR_GRADIENT_RETURN=100`", TRAIN_DDP, plugin="gemini",
              options=["CASTOR_GRADIENT_RETURN=100"], tolerance=1e-5),
    Contender("zero", "ZeroRedundancyOptimizer", TRAIN_PEERS, ["--peer", "zero"]),
    Contender("fsdp2", "FSDP2 (`fully_shard`)", TRAIN_PEERS, ["--peer", "fsdp2"]),
    Contender("deepspeed2", "DeepSpeed ZeRO-2", TRAIN_PEERS, ["--peer", "deepspeed2"], interpreter="deepspeed", peak=30),
    Contender("deepspeed3", "DeepSpeed ZeRO-3", TRAIN_PEERS, ["--peer", "deepspeed3"], interpreter="deepspeed", peak=36),
)}


def castor_malloc_settings():
    """The settings for glibc's malloc that `castor run` gives to its command."""
    with tempfile.TemporaryDirectory() as log:
        try:
            shown = subprocess.run([jobs.CASTOR, "run", "--log-dir", log, "--", "env"], env=jobs.clean_environment(),
                                   capture_output=True, text=True, timeout=30).stdout
        except (OSError, subprocess.TimeoutExpired):
            return {}
    pairs = (line.split("=", 1) for line in shown.splitlines() if "=" in line)
    return {name: value for name, value in pairs if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES"}
