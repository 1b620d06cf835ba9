"""Plain runs by tests/plain.py, for suites that ask for them one by one."""
import json
import os
import shutil
import subprocess
import sys
import threading

import runner

TRIES = 3
TOO_LONG = 124  # the status of such a job (plain.py)


class PlainJobs:
    """One process of plain.py, begun as a program of `under`. It ends with this one, since its input ends then. Safe from any thread."""

    def __init__(self, under=()):
        command = [*under, sys.executable, os.path.join(runner.ROOT, "tests", "plain.py")]
        self.process = subprocess.Popen(command, env=runner.environment("GLOO_"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.given, self.ended, self.lock = [], {}, threading.Lock()

    def start(self, script, arguments, ranks, folder, seconds, environment):
        """Returns the job's number. `ranks`: 0 for a script of one process. `folder`: the job's own, empty."""
        job = {"script": script, "stages": [arguments], "ranks": ranks, "folder": folder, "seconds": seconds, "environment": environment}
        with self.lock:
            return self._give(job)

    def status(self, number):
        """Waits for the job's end."""
        with self.lock:
            return self._status(number)

    def finish(self, number):
        """Waits for the job's end. Run again in its folder, emptied, when it fails: a rank of plain PyTorch may abort at its
        exit (docs/decisions.md). Nothing of Castor's is in the process."""
        for _ in range(TRIES - 1):
            status = self.status(number)
            if status == 0:
                return
            job = self.given[number]
            print(f"{job['script']}: plain PyTorch ended with status {status}; it runs again", flush=True)
            shutil.rmtree(job["folder"])
            os.makedirs(job["folder"])
            with self.lock:
                number = self._give(job)
        if self.status(number):
            with open(os.path.join(self.given[number]["folder"], "stderr.txt")) as said:
                raise AssertionError(f"plain PyTorch ended with status {self.status(number)}\n{said.read()}")

    def _give(self, job):
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        self.given.append(job)
        return len(self.given) - 1

    def _status(self, number):
        while number not in self.ended:
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError(f"plain.py ended with status {self.process.wait()}")
            said = json.loads(line)
            self.ended[said["job"]] = said["status"]
        return self.ended[number]
