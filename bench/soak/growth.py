"""The job that lasts beside the others, and whether it grows."""

import json
import os
import statistics
import subprocess
import time

import machine

HERE = os.path.dirname(os.path.abspath(__file__))
WARM_UP = 0.25  # of the cycles: caches and pools fill
# What a process may hold more of in the last quarter of the cycles than in the first one after the warm-up, as medians:
# the unit, a fixed part, a part of what it held, and a part for each cycle between the two.
ALLOWED = {
    "descriptors": ("", 0, 0.0, 0),
    "threads": ("", 0, 0.0, 0),
    # Places in the store's files are not given out twice: a chunk is mapped for so many bytes of parameters, gradients and
    # states that there ever were, three chunks of 32 MiB for about 80 of these models and rank.
    "maps": ("", 4, 0.0, 0.1),
    # Of every parameter that it ever had the store keeps a record (interpose/store/store.h), and a sum below a page.
    "shared_kib": (" KiB", 256, 0.0, 12),
    "resident_kib": (" KiB", 8 << 10, 0.01, 16),
}


class Lasting:
    """castor run of long_ddp.py, from start() to end()."""

    def __init__(self, job, soak):
        self.job, self.soak = job, soak
        self.job["options"] = {}
        self.out = os.path.join(job["folder"], "out")
        self.process, self.status, self.left = None, None, {}

    def start(self):
        command = self.soak.command(self.job, os.path.join(HERE, "long_ddp.py"), ["--out", self.out])
        environment = {**os.environ, **self.soak.environment(self.job)}
        with open(os.path.join(self.job["folder"], "output.txt"), "wb") as output:
            self.process = subprocess.Popen(
                command, cwd=self.job["folder"], env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def is_alive(self):
        return self.process.poll() is None

    def end(self):
        """Lets the job come to its end; what does not end is ended. Once."""
        if self.process is None or self.status is not None:
            return
        os.makedirs(self.out, exist_ok=True)
        open(os.path.join(self.out, "stop"), "w").close()
        try:
            self.status = self.process.wait(self.soak.args.patience)
        except subprocess.TimeoutExpired:
            self.status = "it did not end"
            self.process.terminate()
            self.process.wait()
        deadline = time.monotonic() + 10
        while (left := machine.processes_of(self.job["mark"])) and time.monotonic() < deadline:
            time.sleep(0.2)
        self.left = left

    def problems(self):
        found = [] if self.status == 0 else [f"status {self.status}, see {self.job['folder']}"]
        return found + ([f"processes {sorted(self.left)} are left"] if self.left else [])

    def lines(self):
        """{rank: what its process held after each cycle}"""
        found = {}
        for rank in range(self.job["ranks"]):
            try:
                with open(os.path.join(self.out, f"rank{rank}.jsonl")) as file:
                    found[f"rank {rank}"] = [json.loads(line) for line in file]
            except OSError:
                found[f"rank {rank}"] = []
        return found


def judged(lines_of_ranks):
    """{rank: its cycles, steps, figures at both ends, and what grew beyond what is allowed}"""
    found = {}
    for rank, lines in lines_of_ranks.items():
        if len(lines) < 20:
            found[rank] = {"cycles": len(lines), "steps": 0, "figures": {}, "problems": [f"{rank}: only {len(lines)} cycles"]}
            continue
        warm = lines[int(len(lines) * WARM_UP) :]
        part = max(len(warm) // 4, 1)
        figures, problems = {}, []
        for name, (unit, fixed, share, each) in ALLOWED.items():
            first = statistics.median(line[name] for line in warm[:part])
            last = statistics.median(line[name] for line in warm[-part:])
            figures[name] = [first, last]
            allowed = fixed + share * first + each * (len(warm) - part)
            if last - first > allowed:
                problems.append(f"{rank}: {name} grew from {first:g}{unit} to {last:g}{unit} in {len(warm)} cycles")
        found[rank] = {"cycles": len(lines), "steps": lines[-1]["steps"], "figures": figures, "problems": problems}
    return found
