#!/usr/bin/env python3
"""How long `castor report` takes for a large trace, and how much memory.

    bench/report/run.py [--castor build/bin/castor] [--make-trace build/bin/make-trace] [--mib 1024] [--ranks 2]
                        [--folder DIR] [--rounds 3] [--out bench/results/report.json]

Makes a trace of the size with bench/report/generate.c, reads the directory once so that its files are cached, then runs
each format in turn, so many rounds, and notes the wall time, the processor time, the peak of resident memory (of the process
itself, from wait4) and the size of what is written.
"""
import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FORMATS = ("text", "json", "html", "perfetto")
LIMIT_SECONDS, LIMIT_MIB = 10, 500


def measured(command):
    """Runs a command; returns its wall and processor time in seconds and its peak of resident memory in MiB."""
    begin = time.monotonic()
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {process.returncode}")
    return {"wall_seconds": round(wall, 3), "processor_seconds": round(usage.ru_utime + usage.ru_stime, 3),
            "peak_mib": round(usage.ru_maxrss / 1024, 1)}


def size_of(folder):
    return sum(entry.stat().st_size for entry in os.scandir(folder) if entry.name.endswith(".trace"))


def processor():
    with open("/proc/cpuinfo") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return {"name": names[0] if names else platform.machine(), "cores": len(os.sched_getaffinity(0))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--castor", default=os.path.join(ROOT, "build/bin/castor"))
    parser.add_argument("--make-trace", default=os.path.join(ROOT, "build/bin/make-trace"))
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where the trace and the reports go for the time of the measurement")
    parser.add_argument("--out", default=os.path.join(ROOT, "bench/results/report.json"))
    args = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="castor-report-", dir=args.folder)
    try:
        trace = os.path.join(folder, "trace")
        records = args.mib * 2**20 // 64 // args.ranks
        subprocess.run([args.make_trace, trace, "--ranks", str(args.ranks), "--records", str(records)], check=True)
        subprocess.run(["cat"] + [entry.path for entry in os.scandir(trace)], check=True, stdout=subprocess.DEVNULL)
        samples = {name: [] for name in FORMATS}
        for _ in range(args.rounds):
            for name in FORMATS:
                out = os.path.join(folder, "report." + name)
                sample = measured([args.castor, "report", trace, "--format", name, "-o", out])
                sample["written_mib"] = round(os.path.getsize(out) / 2**20, 2)
                samples[name].append(sample)
        version = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
        result = {
            "bench": "report",
            "machine": {"processor": processor(), "kernel": platform.release(), "libc": " ".join(platform.libc_ver())},
            "castor": version.stdout.strip(),
            "command": f"bench/report/run.py --mib {args.mib} --ranks {args.ranks} --rounds {args.rounds}",
            "trace": {"bytes": size_of(trace), "files": len(os.listdir(trace)), "ranks": args.ranks,
                      "records": args.ranks * records},
            "samples": samples,
            "medians": {name: {key: statistics.median(sample[key] for sample in runs) for key in runs[0]}
                        for name, runs in samples.items()},
            "limits": {"wall_seconds": LIMIT_SECONDS, "peak_mib": LIMIT_MIB},
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    with open(args.out, "w") as file:
        json.dump(result, file, indent=2)
        file.write("\n")
    print(f"{result['trace']['bytes'] / 2**20:.0f} MiB of trace")
    for name, median in result["medians"].items():
        print(f"{name:10}{median['wall_seconds']:8.2f} s {median['peak_mib']:8.1f} MiB {median['written_mib']:9.2f} MiB written")
    # Trace events are as many as records, and as long to write: the limits are of the reports for people.
    within = all(median["wall_seconds"] < LIMIT_SECONDS and median["peak_mib"] < LIMIT_MIB
                 for name, median in result["medians"].items() if name != "perfetto")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
