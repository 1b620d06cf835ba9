#!/usr/bin/env python3
"""Evicting and loading through the disk queue, beside O_DIRECT on the same file, and both beside a step that waits for memory.

Each round runs every contender once (disk.c); ratios are taken within a round and their median is shown. Bandwidth is compared
with the fastest of three ways of using O_DIRECT (1 thread with requests of 1 MiB, 4 with 4 MiB, 2 with 16 MiB), by its median
over all rounds. What streams moves each byte twice: it is compared with two threads that read and two that write.
"""

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
MIB = 1 << 20


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="/tmp", help="where the file lies; it has no name, and is gone with the program")
    parser.add_argument("--mib", type=int, default=1024, help="size of the file")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("-o", "--output", default=os.path.join(ROOT, "bench", "results", "disk.json"))
    return parser.parse_args()


def describe_machine(folder):
    with open("/proc/cpuinfo") as file:
        cpu = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown")
    system = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=True).stdout.strip()
    return dict(cpu=cpu, cores=os.cpu_count(), kernel=platform.release(), file_system=system, load=os.getloadavg()[0])


def describe_version():
    git = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return git.stdout.strip() or "unknown"


def measure(args):
    subprocess.run(["make", "-C", ROOT, "build/bin/bench-disk"], check=True, stdout=subprocess.DEVNULL)
    command = [os.path.join(ROOT, "build", "bin", "bench-disk"), args.folder, str(args.mib), str(args.rounds)]
    # A round takes seconds on a disk of 1 GiB/s.
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60 + args.rounds * args.mib / 10)
    sys.stderr.write(done.stderr)
    if done.returncode:
        sys.exit(f"run.py: bench-disk ended with status {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def figures(samples):
    of = {}
    for sample in samples:
        of.setdefault(sample["name"], []).append(sample)

    def bandwidth(name):
        return [sample["bytes"] / MIB / sample["seconds"] for sample in of[name]]

    def against(name, other):
        """Medians within rounds: of seconds for the same bytes."""
        return round(statistics.median(a / b for a, b in zip(bandwidth(name), bandwidth(other))), 3)

    fastest = {kind: max((n for n in of if n.startswith(f"direct {kind}")), key=lambda n: statistics.median(bandwidth(n)))
               for kind in ("write", "read", "both")}
    rows = {}
    for name, own in of.items():
        rows[name] = dict(mib_per_second=round(statistics.median(bandwidth(name))),
                          cpu_seconds_per_gib=round(statistics.median(s["cpu_seconds"] * 1024 * MIB / s["bytes"] for s in own), 3))
        kind = next((k for word, k in (("evict", "write"), ("load", "read"), ("stream", "both")) if word in name), None)
        if kind:
            rows[name]["to_direct"] = against(name, fastest[kind])
        if "step" in name or "stream" in name:
            rows[name]["seconds_to_memory"] = round(statistics.median(
                s["seconds"] / m["seconds"] for s, m in zip(own, of["step in memory"])), 3)
        if "stream" in name:
            rows[name]["stalled"] = round(statistics.median(s["stall_seconds"] / s["seconds"] for s in own), 3)
    return dict(fastest_direct=fastest, rows=rows)


def main():
    args = parse_arguments()
    samples = measure(args)
    found = figures(samples)
    results = dict(bench="disk", date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                   command=shlex.join([os.path.basename(sys.argv[0]), *sys.argv[1:]]), machine=describe_machine(args.folder),
                   version=describe_version(), mib=args.mib, rounds=args.rounds, figures=found, samples=samples)
    os.makedirs(os.path.dirname(os.path.abspath(args.output)), exist_ok=True)
    with open(args.output + ".part", "w") as file:
        json.dump(results, file, separators=(",", ":"))
        file.write("\n")
    os.replace(args.output + ".part", args.output)
    print("| | MiB/s | x O_DIRECT | CPU s a GiB | x step in memory | stalled |\n| --- | --- | --- | --- | --- | --- |")
    for name, row in found["rows"].items():
        print(f"| {name} | {row['mib_per_second']} | {row.get('to_direct', '')} | {row['cpu_seconds_per_gib']} | "
              f"{row.get('seconds_to_memory', '')} | {row.get('stalled', '')} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
