#!/usr/bin/env python3
"""What a step of several ranks sends over NCCL, and carries over each rank's link, beside what ZeRO's formulas say and what FSDP2 sends.

    bench/device/ranks.py [--ranks 2,4] [--layers 4] [--hidden 256] [-o FILE]

A GPT in DistributedDataParallel on simulated devices with numbers, AdamW; for FSDP2 in PyTorch's fully_shard, of each block and the rest. Bytes are of a step
and a rank, in units of the parameters' (4 bytes each): those that ring algorithms send for what the trace counts, and Castor's count of the link. They are
differences of a longer and a shorter run, so what a job does once is not in them, and do not depend on the machine's load. Without -o a table is printed.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[1:1] = [os.path.dirname(HERE)]

from jobs import CASTOR, clean_environment  # noqa: E402

STEPS = 3, 7
ON_THE_HOST = "CASTOR_DEVICE_BUDGET=5M"  # has slots, and no homes
# (name, plugin, script, options, what a rank sends by the formulas in units of (N - 1) / N parameters)
SYSTEMS = [
    ("DistributedDataParallel", "none", "ddp", (), 2),
    ("FSDP2 (ZeRO-3)", "none", "fsdp2", (), 3),
    ("ddp", "ddp", "ddp", (), 2),
    ("zero1 (ZeRO-1: 2)", "zero1", "ddp", (), 3),
    ("zero2 (ZeRO-2)", "zero2", "ddp", (), 2),
    ("zero2, on the host", "zero2", "ddp", (ON_THE_HOST,), 2),
    ("gemini, on the devices", "gemini", "ddp", (), 2),
    ("gemini, on the host", "gemini", "ddp", (ON_THE_HOST,), 1),
]


def sent(collectives, ranks):
    """Bytes that all ranks send: rings, for the bytes that the trace counts. Of an all-gather these are a rank's own."""
    of_each = {"allreduce": 2 * (ranks - 1) / ranks, "_allgather_base": ranks - 1, "allgather": ranks - 1}
    return sum(each["bytes"] * of_each.get(name, (ranks - 1) / ranks) for name, each in collectives.items())


def run(args, ranks, plugin, script, options, steps):
    """(bytes over NCCL, to the devices, to the host) of all ranks."""
    with tempfile.TemporaryDirectory(prefix="castor-bench-") as folder:
        sets = [word for option in options for word in ("--set", option)]
        command = [CASTOR, "run", "--plugin", plugin, "--log-dir", folder, *sets, "--", args.python, os.path.join(ROOT, "tests", "sim", "simulate"),
                   "--devices", str(ranks), "--numbers", "--", args.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
                   os.path.join(HERE, "ranks_train.py"), script, str(args.layers), str(args.hidden), str(steps)]
        done = subprocess.run(command, env=clean_environment({"CUBLAS_WORKSPACE_CONFIG": ":16:8"}), capture_output=True, text=True, timeout=600)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed with status {done.returncode}:\n{done.stderr}")
        told = json.loads(subprocess.run([CASTOR, "report", "--format", "json", folder], capture_output=True, text=True, check=True).stdout)
    link = [sum(rank["device"]["link"][way]["bytes"] for rank in told["ranks"]) if plugin != "none" else 0 for way in ("to_device", "to_host")]
    return [sent(told["collectives"], ranks), *link]


def measured(args, ranks, system):
    name, plugin, script, options, formula = system
    count = args.layers * (12 * args.hidden**2 + 13 * args.hidden) + (2 * 256 + 32 + 2) * args.hidden
    shorter, longer = (run(args, ranks, plugin, script, options, steps) for steps in STEPS)
    nccl, to_device, to_host = ((more - less) / (STEPS[1] - STEPS[0]) / ranks / (4 * count) for less, more in zip(shorter, longer))
    return {"system": name, "ranks": ranks, "nccl": nccl, "formula": formula * (ranks - 1) / ranks, "to_device": to_device, "to_host": to_host}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=lambda text: [int(each) for each in text.split(",")], default=[2, 4])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("-o", metavar="FILE")
    args = parser.parse_args()
    rows = [measured(args, ranks, system) for ranks in args.ranks for system in SYSTEMS]
    results = {"bench": "device", "layers": args.layers, "hidden": args.hidden, "rows": rows}
    if args.o:
        with open(args.o, "w") as file:
            json.dump(results, file, indent=1)
            file.write("\n")
    print("| a step of a rank | ranks | NCCL | by the formula | to the device | to the host |\n| --- | --: | --: | --: | --: | --: |")
    for row in rows:
        print(f"| {row['system']} | {row['ranks']} | {row['nccl']:.2f} | {row['formula']:.2f} | {row['to_device']:.2f} | {row['to_host']:.2f} |")


if __name__ == "__main__":
    main()
