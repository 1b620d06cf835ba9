"""Runs bench/budget's script under budgets, keeps what its first rank has recorded of a step (CASTOR_MOMENTS_DIR), and says what
that rank's steps took and moved: what the replay of its recording, at the same budget and the disk's bandwidth, is held against."""
import json
import os
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
BENCH = os.path.dirname(HERE)
sys.path[:0] = [BENCH, os.path.join(BENCH, "budget")]

import jobs
from common import MODEL_BYTES, PARAMETERS, RANKS, TRAIN, disk_bandwidth

WARM_STEPS = 4
TIMEOUT_S = 600


def chunk_bytes(path):
    with open(path, encoding="ascii") as lines:
        return sum(int(line.split()[3]) for line in lines if line.startswith("chunk "))


def run(python, size, share, steps, disk_folder, folder):
    """One run, its files in `folder`. Returns the recording's path, the first rank's part of the budget, and its figures per step."""
    budget = int(PARAMETERS[size] * MODEL_BYTES * share)
    command = [jobs.CASTOR, "run", "--plugin", "gemini", "--log-dir", os.path.join(folder, "trace")]
    for option in (f"CASTOR_MEMORY_BUDGET={budget}", f"CASTOR_OFFLOAD_DIR={disk_folder}", f"CASTOR_MOMENTS_DIR={folder}"):
        command += ["--set", option]
    command += ["--", *jobs.torchrun(python, RANKS), TRAIN, "--size", size, "--steps", str(WARM_STEPS + steps), "--records", folder]
    job = jobs.Job(command, os.path.join(folder, "output.txt"), jobs.clean_environment())
    try:
        if not job.finished(TIMEOUT_S, lambda: None) or job.process.returncode:
            raise RuntimeError(f"{size}, share {share}: {jobs.last_error_line(job.output())}")
    finally:
        job.stop()
    with open(os.path.join(folder, "rank0.jsonl"), encoding="ascii") as records:
        records = [json.loads(line) for line in records][1 + WARM_STEPS:]
    paths = [os.path.join(folder, f"moments.{rank}") for rank in range(RANKS)]

    def median(of):
        return statistics.median(of(record) for record in records)

    figures = {
        "step_ns": round(median(lambda r: r["end"] - r["begin"]) * 1e9),
        "stall_ns": round(median(lambda r: r["statistics"][2]["stall_seconds"] - r["statistics"][0]["stall_seconds"]) * 1e9),
        "moved_bytes": round(median(lambda r: r["statistics"][2]["moved"] - r["statistics"][0]["moved"])),
        "hit_rate": records[-1]["statistics"][2]["prefetch"]["hit_rate"],
    }
    return paths[0], int(budget * chunk_bytes(paths[0]) / sum(map(chunk_bytes, paths))), figures
