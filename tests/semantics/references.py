"""The runs of plain PyTorch that the others are compared with, kept between calls."""

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time

import launch
import rows as table
from complaints import last_words
from gloo_words import without_gloo

COMPLETE = "complete"
PLAIN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "plain.py")
PLAIN_TRIES = 3


def slug(title):
    return re.sub(r"\W+", "-", title)


def part_of(printed, case):
    """What one case printed: scripts with several cases announce each with a line of its own."""
    printed = without_gloo(printed)
    if not case:
        return printed
    found = re.findall(rf"^== {re.escape(case)}\n(.*?)(?=^== |\Z)", printed, re.MULTILINE | re.DOTALL)
    return "".join(found)


def arguments_of(rows, arguments, under_castor):
    """Of the script, for these cases of it and for this stage."""
    expect, names = rows[0].expect, [row.case for row in rows]
    case = ("--case", ",".join(names)) if names[0] else ()
    return ["--out", "out", *expect.arguments, *(expect.under if under_castor else ()), *arguments, *case]


def recorded(row, folder, ranks):
    """Whether each rank has left its record of the case."""
    record = os.path.join(folder, "out", row.case, "record")
    return all(os.path.exists(os.path.join(record, f"rank{rank}.pkl")) for rank in range(ranks))


class References:
    """`seconds(rows, ranks)`: that a run of these cases may take. `under`: the begin of the command that runs them all. `before`: the program
    that runs the script, if it does not run by itself. `failed`: what a plain run that fails says, by the key of its rows."""

    def __init__(self, work, python, jobs, seconds, under=(), before=()):
        self.under, self.before = under, before
        self.work, self.python, self.jobs, self.seconds = work, python, jobs, seconds
        self.failed = {}

    def key(self, row, ranks):
        """The folder of the plain run of a row."""
        digest = hashlib.sha256()
        for name in sorted({row.script, *table.HELPERS}):
            with open(os.path.join(table.SCRIPTS, name), "rb") as file:
                digest.update(file.read())
        digest.update(f"{row.case} {row.expect.arguments} {row.expect.stages}".encode())
        digest.update(f"{ranks if row.distributed else 1} {self.python} {os.path.getmtime(self.python)}".encode())
        return os.path.join(self.work, "plain", f"{row.script[:-3]}-{slug(row.case)}-{digest.hexdigest()[:16]}")

    def missing(self, plan):
        """The plain runs that are missing: rows of one script that can share a process, whatever they need under Castor."""
        groups, seen = {}, set()
        for _, ranks, row in plan:
            key = self.key(row, ranks)
            if key in seen or os.path.exists(os.path.join(key, COMPLETE)):
                continue
            seen.add(key)
            alike = row.script, ranks if row.distributed else 1, row.expect.arguments, row.expect.stages, bool(row.case)
            groups.setdefault(alike, []).append(row)
        return [(ranks, group) for (_, ranks, *_), group in groups.items()]

    def make(self, groups, limit):
        """Makes these plain runs, and those that fail again: a rank of PyTorch may abort at its exit (docs/decisions.md). Only
        here, where nothing of Castor's is in the process."""
        tries = PLAIN_TRIES
        while groups and time.monotonic() < limit:
            tries = max(tries - 1, 0)
            folder = tempfile.mkdtemp(dir=self.work, prefix="plain-")
            try:
                groups = self._make(groups, folder, limit - time.monotonic(), last=not tries)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def _make(self, groups, folder, seconds, last):
        """Returns those that fail. With the `last` try keeps what is there, and what the first case says that is not, and returns the cases
        behind it."""
        jobs = []
        for number, (ranks, rows) in enumerate(groups):
            script, *before = [*self.before, table.path_of(rows[0].script)]
            stages = [[*before, *arguments_of(rows, arguments, False)] for _, arguments in rows[0].stages]
            where = os.path.join(folder, str(number))
            os.makedirs(where)
            jobs.append({"script": script, "stages": stages, "ranks": ranks if rows[0].distributed else 0,
                         "folder": where, "seconds": self.seconds(rows, ranks) * len(stages)})
        with open(os.path.join(folder, "jobs"), "w") as file:
            file.writelines(json.dumps(job) + "\n" for job in jobs)
        most = min(seconds, sum(job["seconds"] for job in jobs))
        told = launch.run([*self.under, self.python, PLAIN, "--jobs", str(self.jobs)], folder, most, given="jobs")
        ended = {said["job"]: said["status"] for said in map(json.loads, told.printed.splitlines())}
        if told.status and not told.timed_out:
            sys.exit(f"run.py: {PLAIN} ends with status {told.status}\n{told.errors}")
        failed = []
        for number, (ranks, rows) in enumerate(groups):
            if number not in ended:
                continue  # the time is over
            finished = launch.read(jobs[number]["folder"], ended[number])
            if finished.status and not last:
                print(f"        {rows[0].script}: plain PyTorch ended with status {finished.status}; it runs again", flush=True)
                failed.append((ranks, rows))
                continue
            missed = [row for row in rows if not recorded(row, jobs[number]["folder"], ranks if row.distributed else 1)]
            if finished.status and not missed:
                missed = rows[-1:]
            for row in missed[:1]:
                self.failed[self.key(row, ranks)] = f"plain PyTorch fails: {last_words(finished)}"
            failed += [(ranks, missed[1:])] * bool(missed[1:])
            for row in rows:
                if row not in missed:
                    self._keep(row, jobs[number]["folder"], finished.printed, self.key(row, ranks))
        return failed

    @staticmethod
    def _keep(row, folder, printed, target):
        shutil.rmtree(target, ignore_errors=True)
        os.makedirs(target)
        shutil.copytree(os.path.join(folder, "out", row.case), os.path.join(target, "out"))
        with open(os.path.join(target, "printed.txt"), "w") as file:
            file.write(part_of(printed, row.case))
        open(os.path.join(target, COMPLETE), "w").close()
