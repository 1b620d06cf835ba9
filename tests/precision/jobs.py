"""Starts train.py under Castor, and gives what its ranks saved."""
import os
import subprocess
import tempfile

import runner
import torch

FOLDER = os.path.dirname(os.path.abspath(__file__))
LIMIT_S = 180  # of one job; reached only by a failure


class Job:
    def __init__(self, status, said, told):
        self.status, self.said, self.told = status, said, told


def start(*arguments, precision="bf16", ranks=2, plugin="gemini", settings=(), single=False, batch="loader"):
    """`arguments`: of the script. Its results are `told`, one of each rank. `batch`: of a script of one process; by the loader a rank's part is
    computed as the reference computes it."""
    with tempfile.TemporaryDirectory(prefix="castor-precision-") as folder:
        out = os.path.join(folder, "out")
        under = [os.environ["PRECISION_TEST_CASTOR"], "run", "--plugin", plugin, "--log-dir", os.path.join(folder, "logs"),
                 "--set", f"CASTOR_PRECISION={precision}"]
        for setting in settings:
            under += ["--set", setting]
        start = runner.script(plugin) if single else runner.ranks(ranks)
        if single:
            under += [*runner.nproc(ranks, start), "--set", f"CASTOR_BATCH={batch}"] if ranks > 1 else []
            arguments = ("--parts", ranks, *arguments)
        command = [*start, os.path.join(FOLDER, "single.py" if single else "train.py"),
                   "--out", out, *map(str, arguments)]
        done = subprocess.run([*under, "--", *command], env=runner.environment("TORCHINDUCTOR_"), cwd=FOLDER,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
        told = [torch.load(f"{out}.{rank}") for rank in range(1 if single else ranks)] if done.returncode == 0 else []
        return Job(done.returncode, done.stderr, told)
