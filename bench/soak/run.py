#!/usr/bin/env python3
"""Castor under load that does not let go: random scripts, plugins, options, kills and restarts for some minutes, beside one
job that lasts (../README.md).

    .venv/bin/python bench/soak/run.py --minutes 20 --seed 7

What the seed decides: the order of the jobs, their scripts, plugins, ranks, options, and when which rank gets which signal.
Ends with status 1 when a result is not what it must be, when something is left behind, or when the job that lasts grows.
"""

import argparse
import json
import os
import random
import shlex
import shutil
import signal
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path += [os.path.join(ROOT, "tests"), os.path.join(ROOT, "tests", "semantics")]

import growth  # noqa: E402
import machine  # noqa: E402
from actions import SIGNALS, Interrupter  # noqa: E402
from traces import left_behind  # noqa: E402

import launch  # noqa: E402
import rows as table  # noqa: E402

# Options that change how Castor works, and never a result.
OPTIONS = (
    ("CASTOR_CHUNK_SIZE", ("64K", "1M", "32M")),
    ("CASTOR_GRADIENT_RETURN", ("0", "50", "100")),
    ("CASTOR_ARENA_RETAIN", ("0", "16M")),
    ("CASTOR_TRACE", ("0", "1")),
    ("CASTOR_DEBUG", ("0", "1")),
    ("CASTOR_OFFLOAD_DIR", ("", "offload")),
)
STEPS, EVERY = 240, 20  # of the run that is cut off and goes on
MOST_CUTS = 3


class Soak:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.random = random.Random(args.seed)
        self.jobs, self.expected, self.number = [], {}, 0
        self.castor = os.path.join(ROOT, "build", "bin", "castor")

    # One command, with nothing of it left afterwards

    def environment(self, job):
        """Everything that a job may leave in a folder for temporary files, it leaves in its own."""
        temporary = os.path.join(job["folder"], "tmp")
        os.makedirs(temporary, exist_ok=True)
        return {"TMPDIR": temporary, "OMP_NUM_THREADS": "1", machine.MARK: job["mark"]}

    def run(self, job, command, cut=None):
        """Runs a command of a job; `cut` is what happens to it meanwhile. Returns how it ended and what was done."""
        interrupter = Interrupter(cut, job["mark"], job["ranks"]) if cut else None
        if interrupter:
            interrupter.start()
        finished = launch.run(command, job["folder"], self.args.patience, self.environment(job))
        done = interrupter.end() if interrupter else None
        job["commands"] += 1
        job["problems"] += left_behind(job, finished)
        if finished.timed_out:
            job["problems"].append(f"did not end in {self.args.patience:.0f} s: {words_of(finished)}")
        return finished, done

    def command(self, job, script, arguments):
        under = [self.castor, "run", "--plugin", job["plugin"], "--log-dir", os.path.join(job["folder"], f"logs{job['commands']}")]
        for name, value in job["options"].items():
            under += ["--set", f"{name}={value}"]
        if script.endswith("_ddp.py"):
            start = [self.args.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(job["ranks"])]
        else:
            under += ["--nproc", str(job["ranks"])]
            start = [self.args.python]
        return [*under, "--", *start, script, *arguments]

    def new_job(self, kind, ranks=None):
        self.number += 1
        folder = os.path.join(self.folder, f"job{self.number}")
        os.makedirs(folder)
        options = {}
        for name, values in self.random.sample(OPTIONS, 3):
            options[name] = self.random.choice(values)
        if options.get("CASTOR_OFFLOAD_DIR"):
            options["CASTOR_OFFLOAD_DIR"] = os.path.join(folder, options["CASTOR_OFFLOAD_DIR"])
            os.makedirs(options["CASTOR_OFFLOAD_DIR"])
        options = {name: value for name, value in options.items() if value}
        return {
            "number": self.number,
            "kind": kind,
            "plugin": self.random.choice(table.ENGINES),
            "ranks": ranks or self.random.choice((2, 2, 3, 4)),
            "options": options,
            "folder": folder,
            "mark": f"soak-{os.getpid()}-{self.number}",
            "commands": 0,
            "cuts": [],
            "problems": [],
        }

    # The kinds of jobs

    def learned(self, job, accumulate):
        """What the uninterrupted run learns, with the plugin gemini and no option: every plugin and option must learn it."""
        key = job["ranks"], accumulate
        if key not in self.expected:
            twin = {**job, "folder": job["folder"] + "-whole", "plugin": "gemini", "options": {}, "problems": [], "commands": 0}
            os.makedirs(twin["folder"])
            if accumulate > 1:
                twin["options"] = {"CASTOR_ACCUMULATE": str(accumulate)}
            finished, _ = self.run(twin, self.training(twin))
            job["problems"] += twin["problems"]
            found = read_json(os.path.join(twin["folder"], "out", "learned.json"))
            if found is None:
                job["problems"].append(f"the uninterrupted run fails: {words_of(finished)}")
                return None
            self.expected[key] = found
        return self.expected[key]

    def training(self, job):
        arguments = ["--out", os.path.join(job["folder"], "out"), "--steps", str(STEPS), "--every", str(EVERY)]
        return self.command(job, os.path.join(HERE, "train_ddp.py"), arguments)

    def cut_off_training(self):
        """Cut off at random moments, started again each time, the run must learn what the uninterrupted one learns."""
        job = self.new_job("training")
        accumulate = self.random.choice((1, 1, 2))
        if accumulate > 1:
            job["options"]["CASTOR_ACCUMULATE"] = str(accumulate)
        cuts = [self.cut(job) for _ in range(self.random.randint(1, MOST_CUTS))]
        expected = self.learned(job, accumulate)
        path = os.path.join(job["folder"], "out", "learned.json")
        for cut in [*cuts, None]:
            finished, done = self.run(job, self.training(job), cut)
            if done:
                job["cuts"].append(done)
            if os.path.exists(path) or finished.timed_out:
                break
            if cut is None or not done or not done["sent"] or not done["fatal"]:
                job["problems"].append(f"ends with status {finished.status} though no rank was killed: {words_of(finished)}")
                break
        found = read_json(path)
        if found is None:
            job["problems"].append("it has not come to its end")
        elif expected is not None and found != expected:
            job["problems"].append(f"learned {found}, the uninterrupted run {expected}")
        return job

    def cut(self, job):
        return {
            "after_seconds": round(self.random.uniform(0, self.args.latest), 2),
            "rank": self.random.randrange(job["ranks"]),
            "signal": self.random.choice(SIGNALS),
            "stopped_seconds": round(self.random.uniform(0.2, 5), 2),
        }

    def row(self):
        """A row of the suite: to its end, or cut off. A rank that only stops for a while does not change the end."""
        job = self.new_job("row", self.random.choice((2, 2, 4)))
        row = self.random.choice([row for row in table.rows() if row.expect.seconds <= 15 and not row.expect.stages])
        job["row"] = row.name
        for option in row.expect.options:
            name, _, value = option.partition("=")
            job["options"][name] = value
        arguments = [*row.expect.arguments, *row.expect.under, "--out", "out", *(("--case", row.case) if row.case else ())]
        cut = self.cut(job) if self.random.random() < 0.6 else None
        finished, done = self.run(job, self.command(job, os.path.abspath(os.path.join(table.SCRIPTS, row.script)), arguments), cut)
        if done:
            job["cuts"].append(done)
        killed = bool(done and done["sent"] and done["fatal"])
        must_fail = bool(row.expect.refused)
        if not killed and not finished.timed_out and (finished.status != 0) != must_fail:
            job["problems"].append(f"ends with status {finished.status}: {words_of(finished)}")
        return job

    # The whole

    def one(self):
        job = self.cut_off_training() if self.random.random() < 0.4 else self.row()
        job.pop("mark")
        folder = job.pop("folder")
        if not job["problems"]:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(folder + "-whole", ignore_errors=True)
        job["options"] = {name: value.replace(folder, "JOB") for name, value in job["options"].items()}
        self.jobs.append(job)
        cuts = ", ".join(f"{cut['signal']} to rank {cut['rank']}" for cut in job["cuts"] if cut["sent"])
        text = f"{job['number']:3} {job['plugin']:6} N={job['ranks']} {job.get('row', job['kind']):45} {cuts}"
        print(("FAILED " if job["problems"] else "ok     ") + text.rstrip(), flush=True)
        for problem in job["problems"]:
            print("        " + problem.replace("\n", "\n        ") + f"\n        see {folder}", flush=True)


def words_of(finished):
    return "; ".join(line[:200] for line in finished.errors.splitlines()[-3:])


def read_json(path):
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--python", default=os.path.join(ROOT, ".venv", "bin", "python"), help="interpreter with torch")
    parser.add_argument("--latest", type=float, default=15, help="seconds after which a signal comes at the latest")
    parser.add_argument("--patience", type=float, default=300, help="seconds that one command may take")
    parser.add_argument("-o", "--output", default=os.path.join(ROOT, "bench", "results", "soak.json"))
    parser.add_argument("--keep", action="store_true", help="keep the folder of the jobs")
    args = parser.parse_args()
    args.python = os.path.abspath(args.python)
    return args


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception: what was started is ended
    folder = tempfile.mkdtemp(prefix="soak-")
    soak, failed = Soak(args, folder), True
    lasting = growth.Lasting(soak.new_job("lasting", 2), soak)
    end = time.monotonic() + 60 * args.minutes
    try:
        lasting.start()
        while time.monotonic() < end and lasting.is_alive():
            soak.one()
        lasting.end()
        grown = growth.judged(lasting.lines())
        problems = lasting.problems() + [problem for found in grown.values() for problem in found["problems"]]
        for rank, found in grown.items():
            print(f"lasting job, {rank}: {found['cycles']} cycles, {found['steps']} steps, {found['figures']}", flush=True)
        for problem in problems:
            print(f"FAILED lasting job: {problem}", flush=True)
        bad = sum(bool(job["problems"]) for job in soak.jobs)
        failed = bool(bad or problems)
        result = {
            "bench": "soak",
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "command": shlex.join(["run.py", "--minutes", f"{args.minutes:g}", "--seed", str(args.seed)]),
            "machine": machine.describe_machine(),
            "versions": machine.describe_versions(args.python),
            "seed": args.seed,
            "jobs": len(soak.jobs),
            "signals": machine.counted(cut["signal"] for job in soak.jobs for cut in job["cuts"] if cut["sent"]),
            "plugins": machine.counted(job["plugin"] for job in soak.jobs),
            "failed": bad,
            "lasting": {"plugin": lasting.job["plugin"], "ranks": grown, "problems": problems},
            "all": soak.jobs,
        }
        os.makedirs(os.path.dirname(os.path.abspath(args.output)), exist_ok=True)
        with open(args.output, "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
        print(f"{len(soak.jobs) - bad} passed, {bad} failed", flush=True)
    finally:
        lasting.end()
        if not args.keep and not failed:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
