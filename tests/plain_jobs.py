"""Plain runs by tests/plain.py, for suites that ask for them one by one."""
import json
import os
import subprocess
import sys

import runner


class PlainJobs:
    """One process of plain.py. It ends with this one, since its input ends then."""

    def __init__(self):
        command = [sys.executable, os.path.join(runner.ROOT, "tests", "plain.py")]
        self.process = subprocess.Popen(command, env=runner.environment("GLOO_"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.count, self.ended = 0, {}

    def start(self, script, arguments, ranks, folder, seconds, environment):
        """Returns the job's number. `ranks`: 0 for a script of one process."""
        job = {"script": script, "stages": [arguments], "ranks": ranks, "folder": folder, "seconds": seconds, "environment": environment}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        self.count += 1
        return self.count - 1

    def status(self, number):
        """Waits for the job's end."""
        while number not in self.ended:
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError(f"plain.py ended with status {self.process.wait()}")
            said = json.loads(line)
            self.ended[said["job"]] = said["status"]
        return self.ended[number]
