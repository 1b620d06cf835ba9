"""Runs the scripts of tests/scripts plain and under Castor, and compares what they saw.

    run.py                        what TEST_LENGTH says (docs/testing.md): `short`, a part of what --full runs, or `all` of it
    run.py --full                 every row, N = 2 and 4, with every plugin; none at N = 2
    run.py [--script S] [--case C] [--ranks 2,4] [--plugin gemini,ddp,zero1,zero2,fsdp,none,plain]
    run.py --full --continue [--for SECONDS] --markdown FILE
                                  leaves out what has passed before with the same code and scripts, and ends in time:
                                  a full run in pieces; the file counts what is still missing.
                                  Every --full run leaves all rows in build/semantics/rows.md
    run.py --hosts 2 --ranks 4    each script's ranks on two hosts (tests/hosts.py), those of single processes by CASTOR_NPROC=auto, against one host's plain run;
                                  --set CASTOR_CHUNK_SIZE=64K lets zero2 and gemini shard small tensors as well (rows_hosts.py)
    run.py --devices              DDP scripts, each rank on a simulated device of its own, over NCCL, against plain PyTorch there (rows_devices.py)
    run.py --self-test            shows that the comparison can fail

The plugin `plain` runs plain PyTorch a second time: a script that differs from itself proves nothing.
"""

import argparse
import concurrent.futures
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
os.environ.setdefault("OMP_NUM_THREADS", "1")

sys.path.append(os.path.join(ROOT, "tests"))
import hosts  # noqa: E402
import launch  # noqa: E402
import report  # noqa: E402
import rows as table  # noqa: E402
import rows_devices  # noqa: E402
import rows_hosts  # noqa: E402
import runner  # noqa: E402
import selftest  # noqa: E402
import short  # noqa: E402
from compare import compare_runs  # noqa: E402
from complaints import last_words, refusal, what_is_wrong_with, what_it_says  # noqa: E402
from references import References, arguments_of, part_of, recorded, slug  # noqa: E402

ENGINES = table.ENGINES
OTHERS = tuple(plugin for plugin in ENGINES if plugin != "gemini")
TESTED = ("shims/castor", "interpose", "kernels")
HOSTS = hosts.__file__
ON_DEVICE = os.path.join(ROOT, "tests", "device", "rank_on_device.py")


class Suite:
    def __init__(self, args):
        self.args = args
        self.work = os.path.join(args.build, "semantics")
        self.python = args.python
        self.torchrun = os.path.join(os.path.dirname(args.python), "torchrun")
        self.results = self.earlier() if args.resume else []
        self.under = runner.on_devices(4) if args.devices else []
        self.before = [ON_DEVICE] if args.devices else []
        self.references = References(self.work, self.python, args.jobs, self.seconds, self.under, self.before)
        self.lock = threading.Lock()  # of what is printed, and of the results

    # Results, kept between calls

    def earlier(self):
        try:
            with open(os.path.join(self.work, "results.json")) as file:
                kept = json.load(file)
        except (OSError, ValueError):
            return []
        rows = {(row.script, row.title): row for row in table.rows()}
        if self.args.devices:
            rows = {key: rows_devices.on_devices(row) for key, row in rows.items()}
        if self.args.hosts > 1:
            rows = {key: rows_hosts.on_hosts(row, self.args.devices) for key, row in rows.items()}
        kept = [r for r in kept if r["passed"] and "outcome" in r]
        return [r for r in kept if (row := rows.get((r["script"], r["case"]))) and r.get("tested") == self.fingerprint(self.under_plugin(row, r["plugin"]))]

    def under_plugin(self, row, plugin):
        return rows_devices.under(row, plugin) if self.args.devices else row

    @staticmethod
    def fingerprint(row):
        return hashlib.sha256(f"{digest_of_tested(row.script, row.distributed)} {row.expect}".encode()).hexdigest()[:16]

    def store(self):
        path = os.path.join(self.work, "results.json")
        with self.lock:
            with open(path + ".new", "w") as file:
                json.dump(self.results, file, indent=1)
            os.replace(path + ".new", path)

    # How a script is started

    def command(self, row, ranks, plugin, arguments, logs):
        program = [*self.before, table.path_of(row.script), *arguments]
        by_torchrun = not (row.case or row.sort) or self.args.full and plugin == "gemini"
        if row.distributed and plugin != "plain" and self.args.hosts == 1 and not by_torchrun:
            program = [self.python, *runner.ranks(ranks)[1:], *program]
        elif row.distributed or plugin != "plain" and self.args.hosts > 1:
            start = [self.torchrun] if os.path.exists(self.torchrun) else [self.python, "-m", "torch.distributed.run"]
            program = [*start, *self.meeting(ranks, plugin), *program]
        else:
            program = [self.python, *([] if by_torchrun else runner.script(plugin)[1:]), *program]
        if plugin == "plain":
            return [*self.under, *program]
        under = [self.args.castor, "run", "--plugin", row.expect.plugin or plugin, "--log-dir", logs if self.args.hosts == 1 else f"{logs}-{{host}}"]
        if self.args.hosts > 1:
            under = [sys.executable, HOSTS, str(self.args.hosts), *under]
        for option in (*self.args.set, *row.expect.options):
            under += ["--set", option]
        if not row.distributed and plugin != "none" and ranks > 1:
            under += ["--nproc", "auto"] if self.args.hosts > 1 else runner.nproc(ranks, program)
        return [*under, "--", *self.under, *program]

    def meeting(self, ranks, plugin):
        """How torchrun's ranks find each other."""
        hosts = self.args.hosts if plugin != "plain" else 1
        if hosts == 1:
            return ["--standalone", "--nproc-per-node", str(ranks)]
        return ["--nnodes", str(hosts), "--node-rank", "{host}", "--nproc-per-node", str(ranks // hosts),
                "--master-addr", "{address}", "--master-port", "29400"]

    def start(self, rows, ranks, plugin, folder):
        """Runs the cases of `rows`, all of one script, in one go; returns what the last stage gave."""
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        first = rows[0]
        printed = ""
        for number, (who, arguments) in enumerate(first.stages):
            under = plugin if who == "castor" else "plain"
            logs = os.path.join(folder, f"logs{number}")
            command = self.command(first, ranks, under, arguments_of(rows, arguments, under != "plain"), logs)
            finished = launch.run(command, folder, self.seconds(rows, ranks))
            printed += finished.printed
            if finished.status != 0 or finished.timed_out:
                break
        finished.printed = printed
        return finished

    def seconds(self, rows, ranks):
        """That a run of these cases may take."""
        return (90 + sum(row.expect.seconds for row in rows) * ranks / 2) * self.args.patience

    # Verdicts

    def verdict(self, row, ranks, plugin, folder, finished):
        """Compares one case of a run that wrote its records."""
        reference = self.references.key(row, ranks)
        with open(os.path.join(reference, "printed.txt")) as file:
            printed = file.read(), part_of(finished.printed, row.case)
        tolerance = row.tolerance(ranks, plugin)
        outcome = compare_runs(
            os.path.join(reference, "out"),
            os.path.join(folder, "out", row.case),
            printed,
            written_by(row, ranks, plugin),
            tolerance,
            single=not row.distributed,
            ignored=row.expect.ignored,
        )
        if plugin in ENGINES and (wrong := what_it_says(row.expect, finished)):
            outcome.fail("castor", wrong)
        if row.expect.differs and plugin in ENGINES:
            meant = [failure for failure in outcome.failures if re.search(row.expect.differs, failure)]
            if meant and len(meant) == len(outcome.failures):
                outcome.failures = []
                return True, "differs as meant", outcome
            outcome.fail("difference", f"expected one like {row.expect.differs!r} and no other")
        if outcome.failures:
            return False, outcome.failures[0], outcome
        if outcome.bitwise:
            return True, "bitwise", outcome
        return True, f"within {tolerance.name}: abs {outcome.absolute:.1e}, rel {outcome.relative:.1e}", outcome

    def idle(self, row, plugin, folder):
        """A run that Castor did not take part in proves nothing; one that it must leave to PyTorch says so."""
        for number, (who, _) in enumerate(row.stages):
            if who != "castor":
                continue
            logs = os.path.join(folder, f"logs{number}" if self.args.hosts == 1 else f"logs{number}-0")
            told = subprocess.run(
                [self.args.castor, "report", logs, "--format", "json"], capture_output=True, text=True, timeout=60
            )
            if told.returncode != 0:
                return f"castor report {logs} fails: {told.stderr.strip()[:200]}"
            report_of_run = json.loads(told.stdout)
            in_store = any(node["peak_bytes"] for node in report_of_run["model_data"]["nodes"])  # the script may have dropped its models
            if self.args.devices:
                seen = [rank["tiers"]["device"].items() | rank["tiers"]["host"].items() for rank in report_of_run["ranks"]]  # at the end: gradients may be cleared
                in_store = all(any(size for kind, size in sizes if kind in ("grad", "optim")) for sizes in seen)
                in_store = in_store and not row.expect.aside  # homes have what PyTorch sums
            left = report_of_run["outcome"].startswith("passthrough") or not in_store
            if left and not row.expect.aside:
                return f"Castor took no part: {report_of_run['outcome']}, {report_of_run['model_data']['numel']} parameters"
            if row.expect.divided and not all(rank.get("calls_by_rows") for rank in report_of_run["ranks"]):
                return "no call of a model was divided"
            if row.expect.in_1f1b and not all(rank.get("calls_1f1b") for rank in report_of_run["ranks"]):
                return "no call of a model ran its backward passes"
            if not left and row.expect.aside:
                return "Castor took part, though the row says that it is left to PyTorch"
            for rank in report_of_run["ranks"]:
                phases = rank["phases"]
                if rank["steps"] and (not phases or abs(sum(phases.values()) - rank["lived_seconds"]) > 1e-4 or not phases["backward"]):
                    return f"the phases of rank {rank['rank']} do not add up to its {rank['lived_seconds']} s: {phases}"
        return ""

    def settle(self, row, ranks, plugin, passed, text, seconds, outcome=None, detail=""):
        mark = "ok    " if passed else "FAILED"
        lines = [f"{mark} N={ranks} {plugin:6} {row.name:50} {text}  [{seconds:.0f} s]"]
        lines += detail.split("\n") if detail and not passed else []
        lines += outcome.failures[1:4] if outcome else []
        with self.lock:
            print("\n        ".join(lines), flush=True)
        self.results.append(
            {
                "script": row.script,
                "case": row.title,
                "ranks": ranks,
                "plugin": plugin,
                "under": " ".join([plugin, *self.args.set]),
                "tested": self.fingerprint(row),
                "commit": commit_of_tested(),
                "passed": passed,
                "verdict": text,
                "bitwise": bool(outcome and outcome.bitwise and passed and not row.expect.differs),
                "absolute": outcome.absolute if outcome else None,
                "relative": outcome.relative if outcome else None,
                "outcome": report.outcome_of(row, plugin, passed, text, bool(outcome and outcome.bitwise)),
            }
        )

    def may_say(self, row):
        on_devices = (rows_devices.HELD, rows_devices.BUDGET, *rows_devices.MAY_SAY.get(row.script, ())) if self.args.devices else ()
        return (*on_devices, *rows_hosts.MAY_SAY) if self.args.hosts > 1 else on_devices

    def check_and_store(self, group, ranks, plugin):
        self.check(group, ranks, plugin)
        self.store()

    def check(self, group, ranks, plugin):
        """Runs the rows of one script together, and those apart that a failure kept from being reached."""
        failed = {row: self.references.failed[key] for row in group if (key := self.references.key(row, ranks)) in self.references.failed}
        for row, text in failed.items():
            if self.args.devices and not rows_devices.in_short(row):  # of scripts for CPUs
                print(f"left out N={ranks} {plugin:6} {row.name:50} {text.splitlines()[0]}", flush=True)
            else:
                self.settle(row, ranks, plugin, False, text, 0)
        group = [row for row in group if row not in failed]
        if not group:
            return
        group = [self.under_plugin(row, plugin) for row in group]
        folder = os.path.join(self.work, "runs", f"{plugin}-{ranks}", f"{group[0].script[:-3]}-{slug(group[0].title)}")
        finished = self.start(group, ranks, plugin, folder)
        if plugin in ENGINES and finished.status == 0 and not group[0].expect.refused:
            idle = self.idle(group[0], plugin, folder)
            if idle:
                self.settle(group[0], ranks, plugin, False, idle, finished.seconds)
        if plugin in ENGINES and (wrong := what_is_wrong_with([row.expect for row in group], finished, self.may_say(group[0]), self.args.hosts)):
            self.settle(group[0], ranks, plugin, False, wrong, finished.seconds)
        if group[0].expect.refused and plugin in ENGINES:
            passed, text = refusal(group[0].expect.refused, finished)
            self.settle(group[0], ranks, plugin, passed, text, finished.seconds, detail=last_words(finished))
            return
        written = written_by(group[0], ranks, plugin)
        share = finished.seconds / len(group)
        clean = finished.status == 0 and not finished.timed_out
        missed, good = [], True
        for row in group:
            if not recorded(row, folder, written):
                missed.append(row)
                continue
            passed, text, outcome = self.verdict(row, ranks, plugin, folder, finished)
            good = good and passed
            self.settle(row, ranks, plugin, passed, text, share, outcome)
        if finished.left_running:
            self.settle(group[-1], ranks, plugin, False, f"{finished.left_running} processes were left running", share)
            good = False
        if missed:
            good = False
            why = f"ends after {finished.seconds:.0f} s without a result" if finished.timed_out else f"status {finished.status}"
            if len(group) == 1:
                self.settle(missed[0], ranks, plugin, False, why, finished.seconds, detail=last_words(finished))
            else:
                print(f"        {group[0].script}: {why} in {missed[0].case}; its remaining cases run apart", flush=True)
                self.apart(missed, ranks, plugin, finished)
        elif not clean:
            good = False
            text = f"status {finished.status} after the last case" + (", by timeout" if finished.timed_out else "")
            self.settle(group[-1], ranks, plugin, False, text, share, detail=last_words(finished))
        if good and not self.args.keep:
            shutil.rmtree(folder, ignore_errors=True)

    def apart(self, missed, ranks, plugin, together):
        """The first missed case is the culprit even if it succeeds alone."""
        before = len(self.results)
        self.check([missed[0]], ranks, plugin)
        same = (missed[0].script, missed[0].title, ranks, plugin)
        own = [r for r in self.results[before:] if (r["script"], r["case"], r["ranks"], r["plugin"]) == same]
        if all(result["passed"] for result in own):
            text = "fails after the cases before it, but not alone"
            self.settle(missed[0], ranks, plugin, False, text, together.seconds, detail=last_words(together))
        if missed[1:]:
            self.check(missed[1:], ranks, plugin)


ONLY_SINGLE = "shims/castor/agent/nproc"  # what scripts under torchrun never reach


@functools.cache
def digest_of_tested(script, distributed):
    """What decides about a script's results, but for PyTorch: the agent, the library, the script and the comparison."""
    paths = ["tests/semantics/compare.py"]
    paths += [f"tests/scripts/{name}" for name in sorted({script, *table.HELPERS})]
    for top in TESTED:
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            folder = os.path.relpath(folder, ROOT)
            if not (distributed and folder == ONLY_SINGLE):
                paths += [f"{folder}/{name}" for name in names if name.endswith((".py", ".c", ".h", ".def", ".inc"))]
    digest = hashlib.sha256()
    for path in sorted(paths):
        with open(os.path.join(ROOT, path), "rb") as file:
            digest.update(hashlib.sha256(file.read()).digest())
    return digest.hexdigest()


@functools.cache
def commit_of_tested():
    """The date and name of the last commit that changed Castor's code, with a plus where the code is not that commit's; empty without git."""
    git = ["git", "-C", ROOT]
    try:
        last = subprocess.run([*git, "log", "-1", "--format=%cs, %h", "--", *TESTED], capture_output=True, text=True, timeout=60)
        same = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *TESTED], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return last.stdout.strip() + ("+" if same.returncode == 1 else "") if last.returncode == 0 else ""


def groups_of(rows):
    """Rows of one script and the same options share a process, but for those that need one of their own."""
    together, groups = {}, []
    for row in rows:
        alike = row.script, row.expect.options, row.expect.under
        if row.alone:
            groups.append([row])
        elif alike in together:
            together[alike].append(row)
        else:
            together[alike] = [row]
            groups.append(together[alike])
    return groups


def written_by(row, ranks, plugin):
    """How many ranks leave a record at the end of a run."""
    ends_plain = plugin in ("none", "plain") or (row.expect.stages and row.expect.stages[-1][0] == "plain")
    return 1 if ends_plain and not row.distributed else ranks


def chosen(args):
    every = table.rows()
    if args.script:
        every = [row for row in every if row.script in args.script or row.script[:-3] in args.script]
    if args.case:
        every = [row for row in every if {row.case, row.title, row.title.partition(": ")[2]} & set(args.case) - {""}]
    if args.hosts > 1:
        every = [rows_hosts.on_hosts(row, args.devices) for row in every if rows_hosts.has(row) and (args.full or args.selected or rows_hosts.in_short(row))]
    if args.devices:
        every = [rows_devices.on_devices(row) for row in every if rows_devices.has(row) and (args.full or args.selected or rows_devices.in_short(row))]
    if not every:
        sys.exit("run.py: no row matches --script and --case")
    plan = []
    for plugin in args.plugin:
        for ranks in args.ranks:
            for row in every:
                if (plugin == "none" or row.expect.one_rank) and ranks != args.ranks[0]:
                    continue  # nothing of it depends on the number of ranks
                if row.shown_by(plugin, args.plugin[0]) and (ranks in row.expect.only_ranks or not row.expect.only_ranks):
                    plan.append((plugin, row.ranks(ranks), row))
    if not plan:
        sys.exit("run.py: these rows are not for the plugin none")
    if not args.short:
        return plan
    stays = short.in_short(plan)
    args.left = len(plan) - len(stays)
    return stays


def in_time(jobs, limit, tasks):
    """Makes the calls, so many at a time, as long as the time lasts; returns the arguments of those that were not made."""
    def call(function, *arguments):
        if time.monotonic() >= limit:
            return arguments
        function(*arguments)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        try:
            calls = [pool.submit(call, *task) for task in tasks]
            return [done for made in calls if (done := made.result())]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            launch.end_all()
            raise


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--jobs", type=int, default=3, help="so many runs at a time")
    parser.add_argument("--continue", action="store_true", dest="resume")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--script", type=words, default=[], help="comma separated, with or without .py")
    parser.add_argument("--case", type=words, default=[], help="comma separated: a case, a row, or what follows the colon in some")
    parser.add_argument("--ranks", type=lambda text: [int(word) for word in text.split(",")])
    parser.add_argument("--plugin", type=words, help="gemini, ddp, zero1, zero2, fsdp, none, plain")
    parser.add_argument("--for", type=float, dest="seconds", metavar="SECONDS", help="begin nothing later than that")
    parser.add_argument("--hosts", type=int, default=1, help="share the ranks out over so many hosts")
    parser.add_argument("--devices", action="store_true", help="each rank trains on a simulated device")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="for every run under Castor")
    parser.add_argument("--markdown", help="write the counts of a --full run to this file")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"), help="folder for references and runs")
    parser.add_argument("--castor", default=os.path.join(ROOT, "build", "bin", "castor"))
    parser.add_argument("--python", default=os.environ.get("PYTHON", os.path.join(ROOT, ".venv", "bin", "python")))
    parser.add_argument("--patience", type=float, default=1.0, help="factor on every time limit")
    parser.add_argument("--keep", action="store_true", help="keep the folders of runs that pass")
    args = parser.parse_args()
    if args.hosts > 1 and any(ranks % args.hosts for ranks in args.ranks or [2]):
        parser.error("--hosts must divide --ranks")
    if args.hosts > 1:
        args.build = os.path.join(args.build, f"hosts{args.hosts}")
    if args.devices:
        args.build = os.path.join(args.build, "devices")
    if args.set and args.full:
        parser.error("a --full run has the options of its rows")
    if args.markdown and not (args.full or args.devices):
        parser.error("--markdown needs --full or --devices")
    args.selected = bool(args.script or args.case or args.ranks or args.plugin)
    args.full = args.full or not args.selected and runner.LENGTH == "all"
    args.short, args.left = not (args.full or args.selected or args.devices or args.hosts > 1), 0
    args.ranks = args.ranks or ([2, 4] if args.full or args.short else [2])
    args.plugin = args.plugin or (["gemini", "zero1", "ddp"] if args.hosts > 1 and args.full else ["zero2"] if args.devices and not args.full
                                  else ["gemini", *OTHERS, "none"] if args.full or args.short else ["gemini"])
    args.build, args.castor = os.path.abspath(args.build), os.path.abspath(args.castor)
    args.python = os.path.abspath(args.python)
    return args


def main():
    args = arguments()
    if args.self_test:
        sys.exit(selftest.main())
    if args.hosts > 1 and hosts.available():
        why = f"no hosts can be made here: {hosts.available()}"
        sys.exit(f"run.py: {why}") if args.selected else runner.leave_out_all(why)
    for complaint in table.disagreements():
        sys.exit(f"run.py: {complaint}")
    if args.plugin != ["plain"] and not os.access(args.castor, os.X_OK):
        sys.exit(f"run.py: {args.castor} is missing; run make first")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception: what was started is ended
    suite = Suite(args)
    os.makedirs(suite.work, exist_ok=True)
    lock = open(os.path.join(suite.work, "lock"), "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"run.py: another run uses {suite.work}; wait for it, or give another folder with --build")
    began = time.monotonic()
    limit = began + args.seconds if args.seconds is not None else float("inf")
    done = {(result["plugin"], result["ranks"], result["script"], result["case"]) for result in suite.results}
    plan = [entry for entry in chosen(args) if (entry[0], entry[1], entry[2].script, entry[2].title) not in done]
    if done:
        print(f"{len(done)} rows passed before", flush=True)
    suite.references.make(suite.references.missing(plan), limit)
    runs = [
        (suite.check_and_store, group, ranks, plugin)
        for plugin in args.plugin
        for ranks in sorted({ranks for _, ranks, _ in plan})
        for group in groups_of([row for p, n, row in plan if (p, n) == (plugin, ranks)])
    ]
    with runner.served(args.castor, *["gemini"] * (args.hosts == 1 and not {*args.plugin}.isdisjoint(ENGINES)), under=suite.under):  # which has all engines' ranks
        left = sum(len(group) for group, *_ in in_time(args.jobs, limit, runs))
    if args.full:
        report.write_rows(os.path.join(suite.work, "rows.md"), suite.results, ROOT)
    if args.markdown:
        (report.write_on_devices if args.devices else report.write_page)(args.markdown, suite.results)
    failed = sum(not result["passed"] for result in suite.results)
    if left:
        print(f"{left} rows are left for another run with --continue", flush=True)
    runner.leave(args.left, "rows")
    print(f"semantics: {time.monotonic() - began:.0f} s", flush=True)
    print(f"{len(suite.results) - failed} passed, {failed} failed", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
