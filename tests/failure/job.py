"""One run of train.py under castor run, and what must hold at its end."""
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.dirname(FOLDER))
import processes  # noqa: E402
import runner  # noqa: E402

START_S = 120  # of a job, until its first step; reached only by a failure
END_S = 60  # from the failure to the others' lines, and to the end
TIMEOUT_S = 300  # CASTOR_TIMEOUT: far beyond
GONE_S = 20  # what has been killed may take a moment to be gone


def castor():
    return os.environ["FAILURE_TEST_CASTOR"]


def torchrun(ranks, *arguments):
    """For what is torchrun's part in the end of a job; elsewhere runner.ranks() does."""
    return [sys.executable, os.path.join(FOLDER, "torchrun.py"), "--standalone", "--nproc-per-node", str(ranks), *arguments]


class Failed(Exception):
    pass


class Skipped(Exception):
    """What the test needs cannot be had here."""


class Job:
    """One run of train.py under castor run. Its lines, with the time at which each came. `before`: a command that starts it,
    as castor's own start; OFFLOAD in it, as @ in settings, is the folder for CASTOR_OFFLOAD_DIR."""

    def __init__(self, kind, how, *arguments, ranks=2, settings=(), launcher=(), variables=(), before=()):
        self.kind, self.ranks = kind, ranks
        self.folder_make()
        script = [os.path.join(FOLDER, "train.py"), kind, how, *map(str, arguments)]
        if kind == "ddp":
            command = [*(launcher or runner.ranks(ranks)), *script]
            options = ["--plugin", "gemini"]
        else:
            command = [sys.executable, *script]
            options = ["--plugin", "gemini", "--nproc", str(ranks), "--all-output"]
        self.start(options, (f"CASTOR_TIMEOUT={TIMEOUT_S}", *settings), command, variables, before)

    def folder_make(self):
        self.folder = tempfile.mkdtemp(prefix="castor-failure-")
        for name in ("out", "tmp", "offload"):
            os.mkdir(self.path(name))

    def start(self, options, settings, command, variables=(), before=()):
        self.mark = uuid.uuid4().hex
        self.lines = []  # (time, text)
        self.changed = threading.Condition()
        options = [*options]
        for setting in settings:
            options += ["--set", setting.replace("@", self.path("offload"))]
        environment = runner.environment("TORCH", "FAILURE_TEST")
        environment.update(TMPDIR=self.path("tmp"), FAILURE_TEST=self.mark, PYTHONUNBUFFERED="1")
        environment.update(variables)
        if before:  # a server's ranks do not see what it mounts
            environment.pop("SERVERS_OF_RANKS", None)
        before = [word.replace("OFFLOAD", self.path("offload")) for word in before]
        self.process = subprocess.Popen(
            [*before, castor(), "run", *options, "--log-dir", "log", "--", *command], env=environment, cwd=self.folder,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append((time.time(), line.rstrip("\n")))
                self.changed.notify_all()
        with self.changed:
            self.lines.append((time.time(), None))
            self.changed.notify_all()

    def text(self):
        return "\n".join(line for _, line in self.lines if line is not None)

    def wait_for(self, pattern, seconds):
        """The first line that holds the pattern: its time, and the match."""
        end, seen = time.monotonic() + seconds, 0
        with self.changed:
            while True:
                for at, line in self.lines[seen:]:
                    if line is None:
                        raise Failed(f"ended without: {pattern}")
                    found = re.search(pattern, line)
                    if found:
                        return at, found
                seen = len(self.lines)
                if not self.changed.wait(end - time.monotonic()) and time.monotonic() > end:
                    raise Failed(f"not within {seconds} s: {pattern}")

    def end(self, seconds):
        try:
            self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"did not end within {seconds} s") from None
        self.ended = time.time()
        self.reader.join(timeout=GONE_S)
        return self.process.returncode

    def processes(self):
        """Those that are left of the job: with its mark, or, of what a server has forked, in its folder."""
        return processes.marked(f"FAILURE_TEST={self.mark}", self.folder)

    def close(self):
        for pid in self.processes():
            for number in (signal.SIGCONT, signal.SIGKILL):
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
        self.process.wait()
        self.reader.join(timeout=GONE_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- what must hold

    def check(self, holds, what):
        if not holds:
            raise Failed(what)

    def of_castor(self, rank):
        return [line for _, line in self.lines if line and re.match(rf"\[rank{rank}\]: castor: ", line)]

    def tracebacks(self, rank):
        return sum(line is not None and line.startswith(f"[rank{rank}]: Traceback ") for _, line in self.lines)

    def nothing_is_left(self):
        end = time.monotonic() + GONE_S
        while self.processes() and time.monotonic() < end:
            time.sleep(0.05)
        self.check(not self.processes(), f"processes are left: {self.processes()}")
        # What plain PyTorch leaves too: torchrun always, a DataLoader whose worker fails.
        left = [name for name in os.listdir(self.path("tmp")) if not name.startswith(("torchelastic_", "pymp-"))]
        self.check(not left, f"left in TMPDIR: {left}")
        self.check(not os.listdir(self.path("offload")), "left in CASTOR_OFFLOAD_DIR")
        pids = set(re.findall(r"^rank \d+ process (\d+)$", self.text(), re.M))
        left = [name for name in os.listdir("/dev/shm") if "castor" in name or pids & set(re.findall(r"\d+", name))]
        self.check(not left, f"left in /dev/shm: {left}")

    def checkpoint_is_whole(self, least):
        """The script's last one: of the step before the failure, or, by the rank that was ahead, of that of it."""
        import torch

        saved = torch.load(self.path("out/last.pt"), weights_only=True)
        self.check(least is None or least <= saved["step"] <= least + 1, f"the checkpoint is of step {saved['step']}, expected {least}")
        self.check(all(t.isfinite().all() for t in saved["model"].values()), "the checkpoint is damaged")

    def report_is_made(self):
        done = subprocess.run([castor(), "report", "log"], cwd=self.folder, capture_output=True, text=True, timeout=END_S)
        self.check(done.returncode == 0 and "Ranks" in done.stdout, f"no report: {done.stderr}")


@contextlib.contextmanager
def started(*arguments, **options):
    job = Job(*arguments, **options)
    try:
        yield job
        job.nothing_is_left()
    except Failed as failure:
        raise Failed(f"{failure}\n{job.text()}") from None
    finally:
        job.close()


# ---- most failures


def others_say(job, failing, pattern, at):
    """The other ranks say this. Returns the time that it took."""
    others = "".join(str(rank) for rank in range(job.ranks) if rank not in failing)
    when, _ = job.wait_for(rf"^\[rank[{others}]\]: castor: {pattern}", END_S)
    return when - at


def only_one_line(job, failing, some=True):
    """No other rank says more than a line, and none what another one has said; `some` rank says one."""
    said = []
    for rank in set(range(job.ranks)) - failing:
        job.check(not job.tracebacks(rank), f"rank {rank} has a traceback")
        job.check(len(job.of_castor(rank)) <= 1, f"rank {rank} says {job.of_castor(rank)}")
        said += [line.partition(": ")[2] for line in job.of_castor(rank)]
    job.check(bool(said) == bool(some) and len(set(said)) == len(said), f"the ranks say {said}")


def fails(kind, how, says, *, status, ranks=2, raised=None, checkpoint=2, settings=(), **more):
    """Rank 1 fails at step 2 and says `raised`, its traceback's last line or a line of Castor's (None: nothing); the others say
    `says` (None: nothing, since it is what rank 1 has said)."""
    with started(kind, how, ranks=ranks, settings=settings, **more) as job:
        _, found = job.wait_for(r"^rank 1 fails now, at ([\d.]+)$", START_S)
        at = float(found[1])
        seconds = others_say(job, {1}, says, at) if says else 0
        job.check(job.end(END_S) == status, f"status {job.process.returncode}, expected {status}")
        only_one_line(job, {1}, says)
        job.check(job.tracebacks(1) == bool(raised and not raised.startswith("castor: ")), f"{job.tracebacks(1)} tracebacks of rank 1")
        job.check(not raised or re.search(rf"^\[rank1\]: {raised}", job.text(), re.M), f"rank 1 does not say: {raised}")
        if checkpoint is not None:
            job.checkpoint_is_whole(checkpoint)
        job.report_is_made()
        return f"the others after {seconds:.1f} s, the end after {job.ended - at:.1f} s"


def stopped(reason):
    return rf"rank 1 \(pid \d+\) stopped: {reason}, in train\.py, line \d+; its traceback tells more \(here: train\.py, line \d+\)$"


DIED = r"rank 1 \(pid \d+\) died .* it was last .* \(here: train\.py, line \d+\)$"
