"""Ranks that fail, in each of the ways that a job may see: what every rank says, how the job ends, what is left.

    tests/failure/run.py [--castor build/bin/castor] [--jobs 3] [--full] [NAME]...

Needs torch (the interpreter that runs this has it). NAMEs select tests whose name contains one of them, --full those of both
kinds of scripts where one stands for the other; several jobs run at a time. The last line is `N passed, N failed`.

A job has CASTOR_TIMEOUT=300 and must end within a minute of the failure, however busy the machine: an error that comes so
soon comes from the failure's detection.
"""
import argparse
import concurrent.futures
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
ROOT = os.path.dirname(os.path.dirname(FOLDER))
START_S = 120  # of a job, until its first step; reached only by a failure
END_S = 60  # from the failure to the others' lines, and to the end
TIMEOUT_S = 300  # CASTOR_TIMEOUT: far beyond
GONE_S = 20  # what has been killed may take a moment to be gone
CASTOR = None
TESTS = {}
FULL = (  # tests that --full adds
    "a rank is killed, of three (ddp)", "a rank is ended by SIGSEGV (single)", "a hook in backward raises (single)",
    "a Function's backward raises (ddp)", "the optimizer's step raises (single)", "memory is out (ddp)",
    "a rank has fewer steps (single)", "a rank calls exit(3) (ddp)", "a DataLoader's worker raises (ddp)",
    "a DataLoader's worker is killed (single)", "another shape of a parameter (ddp)", "another learning rate (single)",
)


class Failed(Exception):
    pass


class Job:
    """One run of train.py under castor run. Its lines, with the time at which each came."""

    def __init__(self, kind, how, *arguments, ranks=2, settings=(), launcher=(), variables=()):
        self.kind, self.ranks = kind, ranks
        self.folder = tempfile.mkdtemp(prefix="castor-failure-")
        for name in ("out", "tmp", "offload"):
            os.mkdir(self.path(name))
        self.mark = uuid.uuid4().hex
        self.lines = []  # (time, text)
        self.changed = threading.Condition()
        script = [os.path.join(FOLDER, "train.py"), kind, how, *map(str, arguments)]
        if kind == "ddp":
            # torchrun looks at its workers now and then, and ends all when one has failed: here, after they have said why.
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
                       "--monitor-interval", "2", *launcher, *script]
            options = ["--plugin", "gemini"]
        else:
            command = [sys.executable, *script]
            options = ["--plugin", "gemini", "--nproc", str(ranks), "--all-output"]
        for setting in (f"CASTOR_TIMEOUT={TIMEOUT_S}", *settings):
            options += ["--set", setting.replace("@", self.path("offload"))]
        foreign = ("CASTOR_", "LD_PRELOAD", "PYTHONPATH", "RANK", "WORLD_SIZE", "MASTER_", "LOCAL_", "TORCH")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        environment.update(OMP_NUM_THREADS="1", TMPDIR=self.path("tmp"), FAILURE_TEST=self.mark, PYTHONUNBUFFERED="1")
        environment.update(variables)
        self.process = subprocess.Popen(
            [CASTOR, "run", *options, "--log-dir", "log", "--", *command], env=environment, cwd=self.folder,
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
        """Those that are left of the job."""
        entry, found = f"FAILURE_TEST={self.mark}".encode(), []
        for name in os.listdir("/proc"):
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if name.isdigit() and entry in file.read().split(b"\0"):
                        found.append(int(name))
            except OSError:
                pass
        return found

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
        done = subprocess.run([CASTOR, "report", "log"], cwd=self.folder, capture_output=True, text=True, timeout=END_S)
        self.check(done.returncode == 0 and "Ranks" in done.stdout, f"no report: {done.stderr}")


def others_say(job, failing, pattern, at):
    """Each of the other ranks says this in one line, and nothing else. Returns the longest time that it took."""
    latest = at
    for rank in set(range(job.ranks)) - failing:
        when, _ = job.wait_for(rf"^\[rank{rank}\]: castor: {pattern}", END_S)
        latest = max(latest, when)
    return latest - at


def only_one_line(job, failing):
    for rank in set(range(job.ranks)) - failing:
        job.check(not job.tracebacks(rank), f"rank {rank} has a traceback")
        job.check(len(job.of_castor(rank)) == 1, f"rank {rank} says {job.of_castor(rank)}")


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


def fails(kind, how, says, *, status, ranks=2, raised=None, checkpoint=2, settings=()):
    """Rank 1 fails at step 2 and says `raised`, its traceback's last line (None: nothing); the others say `says`."""
    with started(kind, how, ranks=ranks, settings=settings) as job:
        _, found = job.wait_for(r"^rank 1 fails now, at ([\d.]+)$", START_S)
        at = float(found[1])
        seconds = others_say(job, {1}, says, at)
        job.check(job.end(END_S) == status, f"status {job.process.returncode}, expected {status}")
        only_one_line(job, {1})
        job.check(job.tracebacks(1) == bool(raised), f"{job.tracebacks(1)} tracebacks of rank 1")
        job.check(not raised or re.search(rf"^\[rank1\]: {raised}", job.text(), re.M), f"rank 1 does not say: {raised}")
        if checkpoint is not None:
            job.checkpoint_is_whole(checkpoint)
        job.report_is_made()
        return f"the others after {seconds:.1f} s, the end after {job.ended - at:.1f} s"


def stopped(reason):
    return rf"rank 1 \(pid \d+\) stopped: {reason}, in train\.py, line \d+; its traceback tells more \(here: train\.py, line \d+\)$"


DIED = r"rank 1 \(pid \d+\) died .* its last place was .* \(here: train\.py, line \d+\)$"
ENDED = r"rank 1 \(pid \d+\) has ended while other ranks wait for it: all ranks must take the same number of steps"


def both(name, how, says, status, raised=None, kinds=("ddp", "single"), **options):
    """The same of a DistributedDataParallel script and of a single process's. `status`: of both, or of each."""
    for kind, expected in zip(kinds, status if isinstance(status, tuple) else (status, status)):
        TESTS[f"{name} ({kind})"] = lambda kind=kind, expected=expected: fails(
            kind, how, says, status=expected, raised=raised, **options)


both("a rank is killed", "killed", DIED, (1, 137), settings=("CASTOR_OFFLOAD_DIR=@",))
both("a rank is killed, of three", "killed", DIED, (1, 137), ranks=3)
both("a rank is ended by SIGSEGV", "segv", DIED, (1, 139))
both("forward raises", "forward", stopped("ValueError: made by forward"), 1, "ValueError: made by forward$")
both("a hook in backward raises", "hook", stopped("ValueError: made by a hook in backward"), 1, "ValueError: made by a hook")
both("a Function's backward raises", "function", stopped("ValueError: made by the function's backward"), 1, "ValueError: made by")
both("the optimizer's step raises", "step", stopped("ValueError: made by the optimizer's step"), 1, "ValueError: made by")
both("memory is out", "memory", stopped(r"RuntimeError: .*can't allocate memory.*"), 1, r"RuntimeError: .*can't allocate memory")
both("a rank leaves early", "leave", ENDED, 1)
both("a rank has fewer steps", "uneven", ENDED, 1, checkpoint=3)
both("a rank calls exit(3)", "exit", ENDED, (1, 3))


both("a script's collective meets a rank that has raised", "collective", stopped("ValueError: made before a collective of the script"),
     1, "ValueError: made before a collective", kinds=("ddp",))


def worker(kind, how, raised, says, checkpoint):
    """A DataLoader's worker of rank 1 fails."""
    with started(kind, how) as job:
        at, _ = job.wait_for(rf"^\[rank1\]: {raised}", START_S)
        seconds = others_say(job, {1}, says, at)
        job.check(job.end(END_S) == 1, f"status {job.process.returncode}")
        only_one_line(job, {1})
        if checkpoint:
            job.checkpoint_is_whole(checkpoint)
        return f"the others {max(seconds, 0):.1f} s after its traceback, the end after {job.ended - at:.1f} s"


for kind in ("ddp", "single"):
    TESTS[f"a DataLoader's worker raises ({kind})"] = lambda kind=kind: worker(
        kind, "worker", "ValueError: made by the worker", stopped(r"ValueError: Caught .* ValueError: made by the worker"), 2)
    TESTS[f"a DataLoader's worker is killed ({kind})"] = lambda kind=kind: worker(
        kind, "worker killed", r"RuntimeError: DataLoader worker \(pid(\(s\))? \d+\) (exited unexpectedly|is killed by signal)", stopped("RuntimeError: DataLoader worker.*"), None)


def differ(kind, how, says, failing=()):
    """The ranks are not alike: each of them (but those that PyTorch tells) says so in one line."""
    with started(kind, how) as job:
        job.check(job.end(START_S) == 1, f"status {job.process.returncode}")
        others_say(job, set(failing), says, time.time())
        only_one_line(job, set(failing))
        for rank in failing:
            job.check(job.tracebacks(rank) == 1, f"{job.tracebacks(rank)} tracebacks of rank {rank}")
        job.check(not os.listdir(job.path("out")), "a step was taken")
        return "each rank"


DIFFERS = r"rank 1 finds that its model differs from rank 0's: build the same model on every rank"
RATES = r"the ranks disagree at an optimizer step: lr of parameter group 0 is 0\.001\d* on rank 0 and 0\.002\d* on rank 1\."
TESTS["another order of parameters (ddp)"] = lambda: differ("ddp", "order", DIFFERS, {1})
TESTS["another shape of a parameter (ddp)"] = lambda: differ("ddp", "width", DIFFERS, {1})
TESTS["another order of parameters (single)"] = lambda: differ("single", "order", r"the ranks' models differ: parameter 0 has 131072")
TESTS["another number of parameters (single)"] = lambda: differ("single", "more", r"the ranks' models differ: rank 0 has 4 parameters")
TESTS["another learning rate (ddp)"] = lambda: differ("ddp", "lr", RATES)
TESTS["another learning rate (single)"] = lambda: differ("single", "lr", RATES)


def stops(kind):
    """A stopped rank is told after CASTOR_TIMEOUT; one that goes on later learns what has happened."""
    seconds = 3
    with started(kind, "stopped", settings=(f"CASTOR_TIMEOUT={seconds}",)) as job:
        _, found = job.wait_for(r"^rank 1 fails now, at ([\d.]+)$", START_S)
        says = (rf"rank 0 waited longer than CASTOR_TIMEOUT \({seconds}\.0 s\) for rank 1 \(pid (\d+)\) at .*; that rank is stopped by a "
                r"signal \(kill -CONT \d+ lets it go on\) \(here: train\.py, line \d+\)$")
        when, line = job.wait_for(rf"^\[rank0\]: castor: {says}", END_S)
        took = when - float(found[1])
        job.check(took >= seconds, f"after {took} s, before CASTOR_TIMEOUT")
        try:
            os.kill(int(line[1]), signal.SIGCONT)
        except ProcessLookupError:
            pass  # castor has ended it, as rank 0 has failed
        job.check(job.end(END_S) == 1, f"status {job.process.returncode}")
        job.check(not job.tracebacks(0) and not job.tracebacks(1), "a rank has a traceback")
        job.checkpoint_is_whole(2)
        return f"CASTOR_TIMEOUT={seconds}: the other after {took:.1f} s"


def interrupts(kind, how, whole_group):
    """Ctrl-C: SIGINT to the process group, or to castor alone. `how`: the ranks train, or one is stopped and the other waits."""
    with started(kind, how, "--steps", 400) as job:
        job.wait_for(r"^rank 1 fails now|^rank 0 step 2 ", START_S)
        time.sleep(0.3)  # into the script's sleep, or the wait
        at = time.time()
        if whole_group:
            os.killpg(job.process.pid, signal.SIGINT)
        else:
            job.process.send_signal(signal.SIGINT)
        if how == "stopped":
            _, found = job.wait_for(r"^\[rank0\]: (castor: )?KeyboardInterrupt", END_S)
            pid = int(re.search(r"^rank 1 process (\d+)$", job.text(), re.M)[1])
            os.kill(pid, signal.SIGCONT)
        status = job.end(END_S)
        job.check(status == (130 if kind == "single" else 1), f"status {status}")
        said = [rank for rank in range(job.ranks) if re.search(rf"^\[rank{rank}\]: (castor: )?KeyboardInterrupt", job.text(), re.M)]
        job.check(0 in said and (how == "stopped" or 1 in said), f"interrupted: {said}")
        job.checkpoint_is_whole(None)
        return f"the end after {job.ended - at:.1f} s"


for kind in ("ddp", "single"):
    TESTS[f"a rank is stopped ({kind})"] = lambda kind=kind: stops(kind)
    TESTS[f"Ctrl-C while a rank waits for a stopped one ({kind})"] = lambda kind=kind: interrupts(kind, "stopped", kind == "ddp")
    TESTS[f"Ctrl-C to the process group ({kind})"] = lambda kind=kind: interrupts(kind, "long", True)
TESTS["SIGINT to castor alone (single)"] = lambda: interrupts("single", "long", False)


def restarts():
    """From the checkpoint; and the losses are those of a run that nothing happened to."""
    losses = {}
    # torchrun keeps one store for all attempts: ranks may find there the addresses of those before them (docs/failure.md).
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    for how, arguments in (("none", ()), ("restart", ("--max-restarts", "1"))):
        with started("ddp", how, "--step", 3, launcher=arguments, variables=variables) as job:
            job.check(job.end(2 * START_S) == 0, f"status {job.process.returncode}")
            if how == "restart":
                job.wait_for(rf"^\[rank0\]: castor: {DIED}", 1)
                job.wait_for(r"^rank 0 resumes at (3|4)$", 1)
            found = {(rank, step): loss for rank, step, loss in re.findall(r"^rank (\d) step (\d) loss (\S+)$", job.text(), re.M)}
            job.check(len(found) == 12 or how == "restart", f"{len(found)} losses")
            job.checkpoint_is_whole(6)
            losses[how] = found
    if losses["none"] != losses["restart"]:
        raise Failed(f"losses {losses}")
    return "the same losses, bit for bit"


TESTS["a rank dies, and torchrun starts all again (ddp)"] = restarts


def main():
    global CASTOR
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--castor", default=os.path.join(ROOT, "build", "bin", "castor"))
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    if not os.access(args.castor, os.X_OK):
        sys.exit(f"{args.castor} is missing; run make first")
    CASTOR = os.path.abspath(args.castor)
    assert all(name in TESTS for name in FULL)
    passed = failed = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        started = {pool.submit(function): name for name, function in TESTS.items()
                   if (any(wanted in name for wanted in args.names) if args.names else args.full or name not in FULL)}
        for done in concurrent.futures.as_completed(started):
            try:
                print(f"{started[done]} ... ok: {done.result()}", flush=True)
                passed += 1
            except Exception as error:  # noqa: BLE001 - whatever it is, the other tests go on
                print(f"{started[done]} ... FAILED: {error if isinstance(error, Failed) else repr(error)}", flush=True)
                failed += 1
    print(f"{passed} passed, {failed} failed", flush=True)
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
