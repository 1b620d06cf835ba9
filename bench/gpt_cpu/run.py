#!/usr/bin/env python3
"""Measures Castor and its peers on one GPT, interleaved. See ../README.md.

A case is a model size and a number of ranks. Each round runs every contender of the case once, so that what
disturbs the machine for minutes disturbs all of them; ratios are taken within a round. In each run the first steps
are warm-up, then come the timed steps, then the memory steps. The memory of the job is read from its start to its end, but not
during the timed steps, because reading it slows the process that is read; that of its ranks alone in the memory steps.
"""

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

from contenders import CONTENDERS, HERE, RETURNED, castor_malloc_settings, jobs
import summary

ROOT = os.path.dirname(os.path.dirname(HERE))
GIB = 1 << 30
PARAMETERS = {"60M": 60e6, "150M": 145e6, "tiny": 0.2e6}
SPARE_BYTES = 1 * GIB  # what must stay free on the machine


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.path.join(ROOT, ".venv", "bin", "python"), help="interpreter with torch")
    parser.add_argument("--deepspeed-python", help="interpreter with torch and deepspeed; without it DeepSpeed is skipped")
    parser.add_argument("--cases", help="SIZE:RANKS, comma separated (60M:2,60M:4,150M:2,150M:4); sizes: 60M, 150M, tiny")
    parser.add_argument("--contenders", help="comma separated (all): " + ", ".join(CONTENDERS))
    parser.add_argument("--malloc", help="glibc's settings for the peers (default,returned)")
    parser.add_argument("--rounds", type=int, help="3")
    parser.add_argument("--warmup-steps", type=int, default=2)
    parser.add_argument("--timed-steps", type=int, default=4, help="per round")
    parser.add_argument("--memory-steps", type=int, default=2, help="per round")
    parser.add_argument("--batch", type=int, default=4, help="sequences per rank")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one run of one contender")
    parser.add_argument("--quiet", type=float, metavar="FRACTION", help="repeat a run, twice at most, while other programs use "
                        "more than this part of the CPUs (0.1)")
    parser.add_argument("--quick", action="store_true", help="60M:2, two rounds of ddp, castor and none (less than 4 minutes)")
    parser.add_argument("--add", action="store_true", help="keep the other cases of an existing result file")
    parser.add_argument("-o", "--output", help="result file (bench/results/gpt_cpu.json; --quick: build/bench/gpt_cpu_quick.json)")
    parser.add_argument("--keep", metavar="DIR", help="keep records, outputs and traces of the runs in DIR")
    parser.add_argument("--summary", metavar="RESULTS", help="print the table of a result file and measure nothing")
    args = parser.parse_args()
    full = dict(cases="60M:2,60M:4,150M:2,150M:4", contenders=",".join(CONTENDERS), malloc="default,returned", rounds=3, quiet=0.1)
    quick = dict(cases="60M:2", contenders="ddp,castor,none", malloc="default", rounds=2, quiet=1.0)
    for name, value in (quick if args.quick else full).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    args.output = args.output or os.path.join(
        ROOT, *(("build", "bench", "gpt_cpu_quick.json") if args.quick else ("bench", "results", "gpt_cpu.json")))
    try:
        args.cases = [(size, int(ranks)) for size, ranks in (case.split(":") for case in args.cases.split(","))]
    except ValueError:
        parser.error(f"--cases {args.cases}: expected SIZE:RANKS, comma separated, such as 60M:2,150M:4")
    for size, ranks in args.cases:
        if size not in PARAMETERS or ranks < 1:
            parser.error(f"--cases {size}:{ranks}: sizes are {', '.join(PARAMETERS)}; ranks are at least 1")
    args.contenders = args.contenders.split(",")
    for name in args.contenders:
        if name not in CONTENDERS:
            parser.error(f"--contenders {name}: not one of {', '.join(CONTENDERS)}")
    args.malloc = args.malloc.split(",")
    for name in args.malloc:
        if name not in ("default", "returned"):
            parser.error(f"--malloc {name}: not one of default, returned")
    if min(args.rounds, args.timed_steps, args.memory_steps) < 1 or args.warmup_steps < 0:
        parser.error("--rounds, --timed-steps and --memory-steps are at least 1, --warmup-steps at least 0")
    return args


def describe_machine():
    model = "unknown"
    with open("/proc/cpuinfo") as cpuinfo:
        for line in cpuinfo:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return dict(cpu=model, cores=len(os.sched_getaffinity(0)), kernel=platform.release(),
                memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def output_of(*command, cwd=None):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd,
                              env=jobs.clean_environment()).stdout.strip().splitlines()[-1:]
    except (OSError, subprocess.TimeoutExpired):
        return []


def describe_versions(args):
    versions = dict(glibc=platform.libc_ver()[1], python=platform.python_version())
    versions["torch"] = (output_of(args.python, "-c", "import torch; print(torch.__version__)") or ["missing"])[0]
    if args.deepspeed_python:
        ask = "import importlib.metadata as m; print(m.version('deepspeed'))"
        versions["deepspeed"] = (output_of(args.deepspeed_python, "-c", ask) or ["missing"])[0]
    commit = output_of("git", "describe", "--always", "--dirty", cwd=ROOT)
    versions["castor"] = commit[0] if commit else "unknown"
    return versions


class Run:
    """One run of one contender: its records, and the driver's samples of its memory."""

    def __init__(self, args, size, ranks, contender, malloc, settings, folder):
        self.args, self.ranks, self.contender, self.folder = args, ranks, contender, folder
        self.steps = args.warmup_steps + args.timed_steps + args.memory_steps
        self.samples, self.short_of_memory, self.job_peak = [], False, 0
        interpreter = args.deepspeed_python if contender.interpreter == "deepspeed" else args.python
        command = jobs.torchrun(interpreter, ranks) + [contender.script, *contender.arguments, "--size", size]
        command += ["--batch", str(args.batch), "--steps", str(self.steps), "--memory-steps", str(args.memory_steps)]
        command += ["--records", folder]
        if contender.plugin:
            self.log = os.path.join(folder, "trace")
            options = [word for option in contender.options for word in ("--set", option)]
            command = [jobs.CASTOR, "run", "--plugin", contender.plugin, "--log-dir", self.log, *options, "--", *command]
        self.command, self.environment = command, jobs.clean_environment(settings.get(malloc))

    def records(self):
        """Per rank: its header and its steps. Lines that are still being written are left out."""
        found = []
        for rank in range(self.ranks):
            lines = []
            try:
                with open(os.path.join(self.folder, f"rank{rank}.jsonl")) as records:
                    lines = [json.loads(line) for line in records if line.endswith("\n")]
            except OSError:
                pass
            found.append(lines)
        return found

    def watch(self):
        """Called some times a second while the job runs; true when it must be stopped."""
        if jobs.available_bytes() < SPARE_BYTES * 3 // 4:
            self.short_of_memory = True
            return True
        records = self.records()
        done = min(len(lines) for lines in records) - 1
        memory = None
        if 0 <= done - self.args.warmup_steps < self.args.timed_steps:
            return False
        if done >= self.args.warmup_steps:
            memory = jobs.memory_of_all([lines[0]["pid"] for lines in records])
        if memory:
            self.samples.append([time.monotonic(), memory])
        self.job_peak = max(self.job_peak, jobs.pss_of_job(self.job.pid))
        return False

    def __call__(self):
        job = self.job = jobs.Job(self.command, os.path.join(self.folder, "output.txt"), self.environment)
        try:
            ended = job.finished(self.args.timeout, self.watch)
        finally:
            killed = job.stop()
        result = dict(seconds=round(time.monotonic() - job.begin, 1), foreign_cpu=round(job.foreign_cpu_fraction(), 3))
        records = self.records()
        complete = all(len(lines) == self.steps + 1 for lines in records)
        if not ended:
            why = "the machine ran short of memory" if self.short_of_memory else f"not done after {self.args.timeout:g} s"
            return dict(result, status="failed", error=f"stopped by the driver: {why}")
        if job.process.returncode or not complete:
            last = jobs.last_error_line(job.output()) or "no output"
            return dict(result, status="failed", error=f"exit status {job.process.returncode}: {last}")
        result.update(status="ok", left_running=killed, parameters=records[0][0]["parameters"],
                      torch=records[0][0]["torch"])
        steps = [lines[1:] for lines in records]
        result["step_seconds"] = [[round(step["end"] - step["begin"], 4) for step in rank] for rank in steps]
        result["losses"] = [[step["loss"] for step in rank] for rank in steps]
        first = self.args.warmup_steps + self.args.timed_steps
        begin, end = min(rank[first]["begin"] for rank in steps), max(rank[-1]["end"] for rank in steps)
        result["memory_samples"] = [[round(t - begin, 3), memory] for t, memory in self.samples if begin <= t <= end]
        result["job_peak_pss"] = self.job_peak
        result["end_of_step_pss"] = [sum(rank[i]["pss"] for rank in steps) for i in range(first, self.steps)]
        if not result["memory_samples"]:
            return dict(result, status="failed", error="the memory steps were too short for a sample; use a larger model")
        if self.contender.plugin:
            result["report"] = self.report()
        return result

    def report(self):
        """The parts of `castor report` that the table needs."""
        shown = subprocess.run([jobs.CASTOR, "report", self.log, "--format", "json"], capture_output=True, text=True,
                               timeout=120, env=jobs.clean_environment())
        try:
            report = json.loads(shown.stdout)
        except ValueError:
            return dict(error=jobs.last_error_line(shown.stderr + shown.stdout))
        return {key: value for key, value in report.items() if key not in ("calls", "command", "directory")}


def reason_to_skip(args, contender, size, ranks):
    if contender.plugin and not os.access(jobs.CASTOR, os.X_OK):
        return f"{os.path.relpath(jobs.CASTOR, ROOT)} is missing; run `make`"
    if contender.interpreter == "deepspeed" and not args.deepspeed_python:
        return "no --deepspeed-python"
    need = contender.peak * PARAMETERS[size] * ranks + ranks * 0.4 * GIB + SPARE_BYTES
    available = jobs.available_bytes()
    if need > available:
        return f"may need {need / GIB:.1f} GiB, {available / GIB:.1f} GiB are available"
    return None


def measure_case(args, size, ranks, settings, save):
    case = dict(size=size, ranks=ranks, date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                command=shlex.join(os.path.basename(word) if os.path.isabs(word) else word for word in sys.argv), rounds=args.rounds, batch=args.batch, warmup_steps=args.warmup_steps,
                timed_steps=args.timed_steps, memory_steps=args.memory_steps, malloc=settings, bare=[], bare_castor=[], runs=[])
    wanted = [(CONTENDERS[name], malloc) for name in args.contenders for malloc in CONTENDERS[name].mallocs()
              if malloc == "castor" or malloc in args.malloc]
    for turn in range(args.rounds):
        with Folder(args.keep, f"{size}-{ranks}-{turn}-bare") as folder:
            case["bare"].append(jobs.bare_import_memory(args.python, ranks, True, folder))
        if any(contender.plugin not in (None, "none") for contender, _ in wanted):
            with Folder(args.keep, f"{size}-{ranks}-{turn}-bare-castor") as folder:
                before = [jobs.CASTOR, "run", "--plugin", "gemini", "--log-dir", os.path.join(folder, "trace"), "--"]
                case["bare_castor"].append(jobs.bare_import_memory(args.python, ranks, True, folder, before))
        for contender, malloc in wanted:
            result = dict(contender=contender.name, malloc=malloc, round=turn)
            reason = reason_to_skip(args, contender, size, ranks)
            if reason:
                attempts = [dict(result, status="skipped", error=reason)]
            else:
                attempts = measure_quietly(args, case, result, (args, size, ranks, contender, malloc, settings))
            case["runs"] += attempts
            print(summary.run_line(case, attempts[-1]), file=sys.stderr, flush=True)
            save(case)
    return case


def measure_quietly(args, case, head, run_arguments):
    """Runs a contender again, twice at most, while other programs take more of the machine than --quiet allows.

    Returns all attempts, the least disturbed last; the others have the status `disturbed`.
    """
    attempts = []
    for attempt in range(3):
        name = f"{case['size']}-{case['ranks']}-{head['round']}-{head['contender']}-{head['malloc']}-{attempt}"
        with Folder(args.keep, name) as folder:
            attempts.append(dict(head, **Run(*run_arguments, folder)()))
        if attempts[-1]["status"] != "ok" or attempts[-1]["foreign_cpu"] <= args.quiet:
            break
    good = [attempt for attempt in attempts if attempt["status"] == "ok"]
    chosen = min(good, key=lambda attempt: attempt["foreign_cpu"]) if good else attempts[-1]
    for attempt in attempts:
        if attempt is not chosen and attempt["status"] == "ok":
            attempt["status"] = "disturbed"
    return [attempt for attempt in attempts if attempt is not chosen] + [chosen]


class Folder:
    """A folder for one run: below `keep` when given, else temporary and removed."""

    def __init__(self, keep, name):
        self.keep = keep
        self.path = os.path.abspath(os.path.join(keep, name)) if keep else tempfile.mkdtemp(prefix="gpt_cpu-")
        if keep:
            shutil.rmtree(self.path, ignore_errors=True)
            os.makedirs(self.path)

    def __enter__(self):
        return self.path

    def __exit__(self, *_):
        if not self.keep:
            shutil.rmtree(self.path, ignore_errors=True)


def main():
    args = parse_arguments()
    if args.summary:
        with open(args.summary) as results:
            print(summary.markdown(json.load(results)))
        return 0
    for interpreter in filter(None, (args.python, args.deepspeed_python)):
        if not os.access(interpreter, os.X_OK):
            raise SystemExit(f"run.py: no interpreter at {interpreter}; run `make setup` or name one with --python")
    jobs.prepare_driver()
    settings = dict(default={}, returned=castor_malloc_settings() or RETURNED)
    results = dict(bench="gpt_cpu", machine=describe_machine(), versions=describe_versions(args), cases=[])
    if args.add and os.path.exists(args.output):
        with open(args.output) as existing:
            measured = set(args.cases)
            results["cases"] = [c for c in json.load(existing)["cases"] if (c["size"], c["ranks"]) not in measured]
    os.makedirs(os.path.dirname(os.path.abspath(args.output)), exist_ok=True)
    kept = results["cases"]

    def save(case):
        results["cases"] = sorted(kept + [case], key=lambda c: (PARAMETERS[c["size"]], c["ranks"]))
        jobs.write(results, args.output, separators=(",", ":"))

    try:
        for size, ranks in args.cases:
            kept.append(measure_case(args, size, ranks, settings, save))
    except RuntimeError as error:
        raise SystemExit(f"run.py: {error}")
    print(summary.markdown(results))
    complaints = summary.complaints(results)
    for complaint in complaints:
        print(f"run.py: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
