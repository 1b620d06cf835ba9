#!/usr/bin/env python3
"""A GPT whose model data is several times CASTOR_MEMORY_BUDGET, beside the same without a budget. See ../README.md.

Each round runs every contender once; ratios are taken within a round and their median is shown. A sampler (sampler.py) looks
some fifty times a second at what the job has in memory. Ends with status 1 when losses differ or the budget was exceeded by more than two chunks.
"""

import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.dirname(HERE))

import jobs
from common import MODEL_BYTES, PARAMETERS, RANKS, TRAIN, disk_bandwidth
from sampler import Sampler

TRAIN_DEEPSPEED = os.path.join(HERE, "train_deepspeed.py")
CONTENDERS = ("unlimited", "budget", "page_cache", "states_on_disk")
PEER = "zero_infinity"  # needs --deepspeed-python
CGROUPS = "/sys/fs/cgroup/memory"


def parse_arguments():
    parser = jobs.parser(__doc__, "budget", 3, 600)
    parser.add_argument("--size", default="60M", choices=PARAMETERS)
    parser.add_argument("--share", type=float, default=0.25, help="of the model data: the budget")
    parser.add_argument("--batch", type=int, default=1, help="sequences per rank and step")
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--deepspeed-python", help="interpreter with torch and deepspeed, for zero_infinity")
    parser.add_argument("--warmup-steps", type=int, default=3)
    parser.add_argument("--timed-steps", type=int, default=5)
    parser.add_argument("--optimizer", choices=("adam", "sgd"), default="adam")
    parser.add_argument("--folder", default="/var/tmp", help="CASTOR_OFFLOAD_DIR")
    parser.add_argument("--note", action="append", default=[], help="goes into the result")
    return parser.parse_args()


def options_of(args, contender):
    budget = int(PARAMETERS[args.size] * MODEL_BYTES * args.share)
    options = {
        "unlimited": [],
        "budget": [f"CASTOR_MEMORY_BUDGET={budget}"],
        "page_cache": ["CASTOR_MEMORY_BUDGET=0"],  # the same files, and the kernel alone decides what of them is in memory
        "states_on_disk": ["CASTOR_PLACEMENT=static", "CASTOR_OFFLOAD_OPTIM_FRAC=1"],
    }[contender]
    return options if contender == "unlimited" else [*options, f"CASTOR_OFFLOAD_DIR={args.folder}"]


class ControlGroup:
    """Below this process's own (version 1), so that who watches that one goes on doing so."""

    def __init__(self, limit_bytes):
        with open("/proc/self/cgroup") as groups:
            own = next((line.split(":", 2)[2].strip() for line in groups if line.split(":")[1] == "memory"), None)
        if own is None:
            raise OSError("no control group of version 1 for memory")
        self.path = f"{CGROUPS}{own}/castor-bench-{os.getpid()}"
        os.mkdir(self.path)
        with open(f"{self.path}/memory.limit_in_bytes", "w") as limit:
            limit.write(str(limit_bytes))

    def wrap(self, command):
        return ["sh", "-c", f"echo $$ > {self.path}/cgroup.procs && exec {shlex.join(command)}"]

    def remove(self):
        for _ in range(50):  # until its last process is gone
            try:
                return os.rmdir(self.path)
            except OSError:
                time.sleep(0.1)


def records_of(folder):
    found = []
    for rank in range(RANKS):
        try:
            with open(os.path.join(folder, f"rank{rank}.jsonl")) as records:
                found.append([json.loads(line) for line in records if line.endswith("\n")])
        except OSError:
            found.append([])
    return found


def command_of(args, contender, folder, steps):
    common = ["--size", args.size, "--batch", str(args.batch), "--steps", str(steps), "--optimizer", args.optimizer, "--records", folder]
    if contender == PEER:
        return [*jobs.torchrun(args.deepspeed_python, RANKS), TRAIN_DEEPSPEED, *common, "--offload", os.path.join(folder, "offload")]
    command = [jobs.CASTOR, "run", "--plugin", "gemini", "--log-dir", os.path.join(folder, "trace")]
    for option in options_of(args, contender):
        command += ["--set", option]
    return [*command, "--", *jobs.torchrun(args.python, RANKS), TRAIN, *common]


def run_once(args, contender, group, folder):
    steps = args.warmup_steps + args.timed_steps
    command = command_of(args, contender, folder, steps)
    if group:
        command = group.wrap(command)
    environment = jobs.clean_environment()
    if contender == PEER:  # which builds its parts when it runs first, with the ninja beside its interpreter
        environment["PATH"] = os.path.dirname(args.deepspeed_python) + os.pathsep + environment["PATH"]
    job, samplers = jobs.Job(command, os.path.join(folder, "output.txt"), environment), []

    def watch():
        if not samplers:
            records = records_of(folder)
            if all(records):
                samplers.append(Sampler([lines[0]["pid"] for lines in records], args.folder, arenas=contender != PEER))
                samplers[0].start()

    try:
        ended = job.finished(args.timeout, watch)
    finally:
        job.stop()
        for sampler in samplers:
            sampler.stop()
    result = dict(contender=contender, seconds=round(time.monotonic() - job.begin, 1),
                  foreign_cpu=round(job.foreign_cpu_fraction(), 3), load=os.getloadavg()[0])
    records = records_of(folder)
    if not ended or job.process.returncode or any(len(lines) != steps + 1 for lines in records):
        why = jobs.last_error_line(job.output()) if ended else f"not done after {args.timeout:g} s"
        return dict(result, status="failed", error=why)
    return dict(result, status="ok", largest_bytes=records[0][0]["largest_bytes"],
                **figures(args, [lines[1:] for lines in records], samplers[0]))


def disk_rate(samples, begin, end):
    """Bytes a second that the disk moved between the last sample before `begin` and the first after `end`; None: there are none."""
    before = max((s for s in samples if s[0] <= begin), default=None)
    after = min((s for s in samples if s[0] >= end), default=None)
    return round((after[3] - before[3]) / (after[0] - before[0])) if before and after else None


def figures(args, ranks, sampler):
    timed = [rank[args.warmup_steps:] for rank in ranks]
    shown = dict(losses=[[step["loss"] for step in rank] for rank in ranks],
                 step_seconds=[max(s["end"] - s["begin"] for s in steps) for steps in zip(*timed)],
                 optimizer_seconds=[max(s["stepped"] - s["backward"] for s in steps) for steps in zip(*timed)])
    peak = max(sampler.samples, key=lambda s: s[1] + s[2], default=(0, 0, 0, 0))
    steady = [model + other for at, model, other, _ in sampler.samples if at >= timed[0][0]["begin"]]
    windows = [(min(s["backward"] for s in steps), max(s["stepped"] for s in steps)) for steps in zip(*timed)]
    shown["optimizer_disk"] = [disk_rate(sampler.samples, *window) for window in windows]
    shown["memory"] = dict(samples=len(sampler.samples), peak_model_bytes=peak[1], peak_other_bytes=peak[2],
                           steady_peak_bytes=max(steady, default=0),
                           base_bytes=sampler.base_bytes, error=sampler.error)
    if not ranks[0][0]["statistics"][0]:
        return shown
    shown["chunk_bytes"] = max(s["statistics"][0]["chunk_size"] for s in ranks[0])
    for name, first, last in (("stall_seconds", 0, 2), ("optimizer_stall_seconds", 1, 2)):
        shown[name] = [max(s["statistics"][last]["stall_seconds"] - s["statistics"][first]["stall_seconds"] for s in steps)
                       for steps in zip(*timed)]
    shown["moved_bytes"] = [sum(s["statistics"][2]["moved"] - s["statistics"][0]["moved"] for s in steps) for steps in zip(*timed)]
    shown["optimizer_moved_bytes"] = [sum(s["statistics"][2]["moved"] - s["statistics"][1]["moved"] for s in steps)
                                      for steps in zip(*timed)]
    shown["prefetch"] = [rank[-1]["statistics"][2]["prefetch"] for rank in ranks]
    return shown


def summary(args, runs, disk):
    by_round, rows, complaints = {}, {}, []
    for run in runs:
        if run["status"] == "ok":
            by_round.setdefault(run["round"], {})[run["contender"]] = run
    for contender in args.contenders.split(","):
        own = [done[contender] for done in by_round.values() if contender in done]
        if not own:
            rows[contender] = dict(error=next((r["error"] for r in runs if r["contender"] == contender), "not run"))
            continue
        steps = [statistics.median(r["step_seconds"]) for r in own]
        row = rows[contender] = dict(step_seconds=round(statistics.median(steps), 3))
        beside = [statistics.median(d[contender]["step_seconds"]) / statistics.median(d["unlimited"]["step_seconds"])
                  for d in by_round.values() if contender in d and "unlimited" in d]
        if beside:
            row["to_unlimited"] = round(statistics.median(beside), 2)
        row["peak_bytes"] = max(r["memory"]["peak_model_bytes"] + r["memory"]["peak_other_bytes"] for r in own)
        row["steady_peak_bytes"] = max(r["memory"]["steady_peak_bytes"] for r in own)
        if "stall_seconds" in own[0]:
            row["stall_seconds"] = round(statistics.median(statistics.median(r["stall_seconds"]) for r in own), 3)
            rate = statistics.median(m / s for r in own for m, s in zip(r["optimizer_moved_bytes"], r["optimizer_seconds"]))
            row["optimizer_moved_to_disk"] = round(rate / disk["both"], 3)
        rates = [rate for r in own for rate in r["optimizer_disk"] if rate is not None]
        if rates:
            row["optimizer_to_disk"] = round(statistics.median(rates) / disk["both"], 3)
        if contender == "budget":
            # A tensor that is larger than chunks are has one of its own.
            row["largest_chunk_bytes"] = max(own[0].get("chunk_bytes", 0), own[0]["largest_bytes"])
            most = PARAMETERS[args.size] * MODEL_BYTES * args.share + 2 * row["largest_chunk_bytes"]
            row["over_bytes"] = max(0, round(row["peak_bytes"] - most))
            if row["over_bytes"]:
                complaints.append(f"over the budget by {row['over_bytes'] >> 20} MiB more than two chunks")
        wanted = next((d["unlimited"]["losses"] for d in by_round.values() if "unlimited" in d), None)
        if wanted and contender != PEER and any(r["losses"] != wanted for r in own):
            row["losses_differ"] = True
            complaints.append(f"{contender}: losses differ from those of unlimited memory")
    return rows, complaints


def main():
    args = parse_arguments()
    jobs.prepare_driver()
    disk, runs, base, other = disk_bandwidth(args.folder), [], 0, 0
    budget = PARAMETERS[args.size] * MODEL_BYTES * args.share
    for turn in range(args.rounds):
        for contender in args.contenders.split(","):
            group = None
            with tempfile.TemporaryDirectory(prefix="castor-bench-", dir=args.folder) as folder:
                try:
                    if contender == "page_cache":  # beside the budget: what every process has, and the ranks' other data
                        group = ControlGroup(int(budget + base * (RANKS + 2) / RANKS + other))
                    result = run_once(args, contender, group, folder)
                except OSError as error:
                    result = dict(contender=contender, status="failed", error=str(error))
                finally:
                    if group:
                        group.remove()
            if contender != PEER:  # of processes of Castor's
                base = max(base, result.get("memory", {}).get("base_bytes", 0))
            other = max(other, result.get("memory", {}).get("peak_other_bytes", 0))
            runs.append(dict(result, round=turn))
            print(turn, contender, result["status"], result.get("error", ""),
                  [round(s, 2) for s in result.get("step_seconds", [])], file=sys.stderr, flush=True)
    rows, complaints = summary(args, runs, disk)
    git = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    results = dict(bench="budget", date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                   command=shlex.join(os.path.basename(word) if os.path.isabs(word) else word for word in sys.argv), version=git.stdout.strip(),
                   machine=dict(cores=os.cpu_count(), kernel=platform.release(), load=os.getloadavg()[0]), notes=args.note,
                   budget_bytes=round(budget), disk_bytes_per_second=disk, rows=rows, complaints=complaints, runs=runs)
    jobs.write(results, args.output, separators=(",", ":"))
    print("| | step s | x unlimited | stall s | optimizer's share of the disk | peak MiB |\n| --- | --- | --- | --- | --- | --- |")
    for name, row in rows.items():
        print(f"| {name} | {row.get('step_seconds', row.get('error'))} | {row.get('to_unlimited', '')} | {row.get('stall_seconds', '')} | "
              f"{row.get('optimizer_to_disk', '')} | {row.get('peak_bytes', 0) >> 20} |")
    for complaint in complaints:
        print(f"run.py: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
