"""Ranks that fail, in each of the ways that a job may see: what every rank says, how the job ends, what is left.

    tests/failure/run.py [--castor build/bin/castor] [--jobs 3] [--calls 2] [NAME]...

Needs torch (the interpreter that runs this has it). NAMEs select tests whose name contains one of them; several jobs run at a
time. TEST_LENGTH=all (docs/testing.md) adds those of both kinds of scripts where one stands for the other, and --calls of each
function of libc, which fail one by one (0: the first and the last by each way through the library; hours). The last line is `N passed, N failed`.

A job has CASTOR_TIMEOUT=300 and must end within a minute of the failure, however busy the machine: an error that comes so
soon comes from the failure's detection.
"""
import argparse
import concurrent.futures
import functools
import os
import re
import signal
import sys
import time

import disks
import faults
import limits
from job import DIED, END_S, START_S, Failed, Skipped, fails, only_one_line, others_say, started, stopped, torchrun

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.append(os.path.join(ROOT, "tests"))
import processes  # noqa: E402
import runner  # noqa: E402

TESTS = {**limits.TESTS, **disks.TESTS, **faults.TESTS}
FULL = (  # tests that the short length leaves out
    "a rank is killed, of three (ddp)", "a rank is ended by SIGSEGV (single)", "a hook in backward raises (single)",
    "a Function's backward raises (ddp)", "the optimizer's step raises (single)", "memory is out (ddp)",
    "a rank has fewer steps (single)", "a rank calls exit(3) (ddp)", "a DataLoader's worker raises (ddp)",
    "a DataLoader's worker is killed (single)", "the kernel ends a rank that is out of memory (ddp)",
    "the disk has no room for gradient chunks (ddp)", "the disk has no room for parameter chunks (single)",
    "the disk has no room for optimizer state chunks (ddp)", "another shape of a parameter (ddp)", "another learning rate (single)",
    "forward raises (single)", "a rank leaves early (ddp)", "Ctrl-C to the process group (ddp)", "a rank is killed, of three (single)",
    "a hook in backward raises (ddp)", "the disk has no room for gradient chunks (single)", "another order of parameters (single)",
    "a rank is stopped (ddp)", "Ctrl-C while a rank waits for a stopped one (single)", "a model outlives the modules, bf16 (single)",
    "a rank is ended by SIGSEGV (ddp)", "the optimizer's step raises (ddp)", "a rank calls exit(3) (single)",
    "a DataLoader's worker is killed (ddp)", "SIGINT to castor alone (single)", "the disk has no room for parameter chunks (ddp)",
    "a chunk does not fit into the address space (single)", "another number of parameters (single)",
    "the offload folder is on a tmpfs (single)", "another learning rate of the last of 12 groups (single)", "memory is out (single)",
    "a Function's backward raises (single)", "the disk fills up in mid-run (single)",
    "the offload folder is of a file system that has no O_TMPFILE", "the offload folder is read-only", "forward raises (ddp)",
    "a rank leaves early (single)", "a rank is killed (single)", "Ctrl-C to the process group (single)",
    "another order of parameters (ddp)", "the kernel ends a rank that is out of memory (single)",
    "a rank is killed, with chunks on disk (budget)", "the disk fills up while its files are used (budget)",
    *disks.FULL, *faults.FULL,
)
ENDED = r"rank 1 \(pid \d+\) has ended while other ranks wait for it: all ranks must take the same number of steps"
JOINED = r"rank 1 has ended, with status 0, and has not joined the others, which wait for it: .* \(here: train\.py, line \d+\)$"


# What ranks of a single process say as well, so that the script can be put right.
DECIDE = r" Decide by what is the same on all of them: .* \(here: train\.py, line \d+\)$"


def both(name, how, says, status, raised=None, kinds=("ddp", "single"), **options):
    """The same of a DistributedDataParallel script and of a single process's. `status`: of both, or of each."""
    for kind, expected in zip(kinds, status if isinstance(status, tuple) else (status, status)):
        TESTS[f"{name} ({kind})"] = lambda kind=kind, expected=expected: fails(
            kind, how, says, status=expected, raised=raised, **options)


both("a rank is killed", "killed", DIED, (1, 137), settings=("CASTOR_OFFLOAD_DIR=@",), launcher=torchrun(2))
both("a rank is killed, of three", "killed", DIED, (1, 137), ranks=3)
both("a rank is ended by SIGSEGV", "segv", DIED, (1, 139))
both("forward raises", "forward", stopped("ValueError: made by forward"), 1, "ValueError: made by forward$")
both("a hook in backward raises", "hook", stopped("ValueError: made by a hook in backward"), 1, "ValueError: made by a hook")
both("a Function's backward raises", "function", stopped("ValueError: made by the function's backward"), 1, "ValueError: made by")
both("the optimizer's step raises", "step", stopped("ValueError: made by the optimizer's step"), 1, "ValueError: made by")
both("memory is out", "memory", stopped(r"RuntimeError: .*can't allocate memory.*"), 1, r"RuntimeError: .*can't allocate memory",
     settings=("CASTOR_FORK=off",))  # the limit comes before the import
both("a rank leaves early", "leave", ENDED, 1, kinds=("ddp",))
both("a rank leaves early", "leave", f"{ENDED}.*{DECIDE}", 1, kinds=("single",))
both("a rank has fewer steps", "uneven", ENDED, 1, checkpoint=3)
both("a rank ends before it has joined the others", "early", JOINED, 1, kinds=("single",), checkpoint=None, ranks=3)
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
    """The ranks are not alike: one line says so (PyTorch tells `failing`)."""
    with started(kind, how) as job:
        job.check(job.end(START_S) == 1, f"status {job.process.returncode}")
        others_say(job, set(failing), says, time.time())
        only_one_line(job, set(failing))
        for rank in failing:
            job.check(job.tracebacks(rank) == 1, f"{job.tracebacks(rank)} tracebacks of rank {rank}")
        job.check(not os.listdir(job.path("out")), "a step was taken")
        return "one line"


DIFFERS = r"rank 1 finds that its model differs from rank 0's: build the same model on every rank"
RATES = r"the ranks disagree at an optimizer step: lr of parameter group 0 is 0\.001\d* on rank 0 and 0\.002\d* on rank 1\."
TESTS["another order of parameters (ddp)"] = lambda: differ("ddp", "order", DIFFERS, {1})
TESTS["another shape of a parameter (ddp)"] = lambda: differ("ddp", "width", DIFFERS, {1})
TESTS["another order of parameters (single)"] = lambda: differ("single", "order", r"the ranks' models differ: parameter 0 has 131072")
TESTS["another number of parameters (single)"] = lambda: differ("single", "more", r"the ranks' models differ: rank 0 has 4 parameters")
TESTS["another learning rate (ddp)"] = lambda: differ("ddp", "lr", RATES)
TESTS["another learning rate (single)"] = lambda: differ("single", "lr", RATES)


TESTS["another learning rate of the last of 12 groups (single)"] = lambda: differ(
    "single", "groups", r"the ranks disagree at an optimizer step: lr of parameter group 11 is 0\.001\d* on rank 0 and 0\.002\d* on rank 1\.")
PARTED = (r"rank 0 waits at train\.py, line \d+ \(.*\) and rank 1 waits at train\.py, line \d+ \(.*\): the script decided differently on them\. "
          r"Decide by what is the same on all of them: .*$")


def parts():
    """One rank saves its best model, the others go on to save their last one. It is said once, and which two files these are."""
    with started("single", "best") as job:
        job.check(job.end(START_S) == 1, f"status {job.process.returncode}")
        said = job.wait_for(rf"^\[rank[01]\]: castor: ({PARTED})", 1)[1][1]
        only_one_line(job, set())
        with open(os.path.join(ROOT, "tests", "failure", "train.py"), encoding="utf-8") as file:
            script = file.read().splitlines()
        lines = [script[int(number) - 1] for number in re.findall(r"train\.py, line (\d+)", said)]
        job.check('path + ".part"' in lines[0] and "best.pt" in lines[1], f"the lines are {lines}")
        return "with both lines"


TESTS["a rank alone saves its best model (single)"] = parts


def stops(kind):
    """A stopped rank is told after CASTOR_TIMEOUT; one that goes on later learns what has happened."""
    seconds = 3
    with started(kind, "stopped", settings=(f"CASTOR_TIMEOUT={seconds}",)) as job:
        _, found = job.wait_for(r"^rank 1 fails now, at ([\d.]+)$", START_S)
        says = (rf"rank 0 waited longer than CASTOR_TIMEOUT \({seconds}\.0 s\) for rank 1 \(pid (\d+)\) at .*; that rank is stopped by a "
                r"signal \(kill -CONT \d+ lets it go on\) \(here: train\.py, line \d+\)$")
        when, line = job.wait_for(rf"^\[rank0\]: castor: {says}", END_S)
        took = when - float(found[1])
        # The other may have waited for it already: it comes to a step earlier, by less than one takes.
        job.check(took >= seconds - 1, f"after {took} s, before CASTOR_TIMEOUT")
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
    with started(kind, how, "--steps", 400, launcher=torchrun(2)) as job:
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


def killed_above(who, command, kind, expected):
    """SIGKILL to castor, or to the launcher, while ranks that were forked from one import train: nothing is left of the job."""
    with started(kind, "long", "--steps", 400, launcher=command) as job:
        job.wait_for(r"^rank 0 step 2 ", START_S)
        with open(job.path("log/castor.about"), encoding="utf-8") as file:
            job.check("forked from" in file.read(), "the ranks were not forked")
        at, pid = time.time(), job.process.pid
        if who != "castor":
            pid = next(pid for pid in job.processes() if processes.fields(pid)[1:2] == [str(job.process.pid)] and processes.words(pid)[1] == "-m")
        os.kill(pid, signal.SIGKILL)
        status = job.end(END_S)
        job.check(status == expected, f"status {status}")
        job.nothing_is_left()
        job.checkpoint_is_whole(None)
        return f"nothing is left after {time.time() - at:.1f} s"


LAUNCHED = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
TESTS["castor is killed (single)"] = lambda: killed_above("castor", (), "single", -signal.SIGKILL)
TESTS["castor is killed (ddp)"] = lambda: killed_above("castor", LAUNCHED, "ddp", -signal.SIGKILL)
TESTS["torchrun is killed (ddp)"] = lambda: killed_above("torchrun", LAUNCHED, "ddp", 128 + signal.SIGKILL)


def restarts():
    """From the checkpoint; and the losses are those of a run that nothing happened to."""
    losses = {}
    # torchrun keeps one store for all attempts: ranks may find there the addresses of those before them (docs/failure.md).
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    for how, arguments in (("none", ()), ("restart", ("--max-restarts", "1"))):
        with started("ddp", how, "--step", 3, launcher=torchrun(2, *arguments), variables=variables) as job:
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


def ends_at_once():
    """A script whose last statement is a collective: plain PyTorch aborts where gloo's thread comes late to its end, here in
    about half of the runs."""
    runs = 2 if runner.LENGTH == "short" else 4
    for _ in range(runs):
        with started("ddp", "at once", ranks=4) as job:
            job.check(job.end(2 * START_S) == 0, f"status {job.process.returncode}: {job.lines[-3:]}")
    return f"{runs} runs of 4 ranks"


def kept(precision):
    """A model that outlives Python's modules (dill keeps what a script has): nobody hears of it."""
    with started("single", "kept", settings=(f"CASTOR_PRECISION={precision}", "CASTOR_SEPARABLE=Optimizer")) as job:
        job.check(job.end(START_S) == 0, f"status {job.process.returncode}: {job.lines[-3:]}")
        job.check("Exception ignored" not in job.text(), "an exception in a callback")
        return "nothing is said"


def in_memory():
    """CASTOR_OFFLOAD_DIR is on a tmpfs: said once, and the run goes on."""
    with started("single", "none", settings=("CASTOR_OFFLOAD_DIR=/dev/shm",)) as job:
        job.check(job.end(START_S) == 0, f"status {job.process.returncode}: {job.lines[-3:]}")
        said = re.findall(r"^castor: rank \d: CASTOR_OFFLOAD_DIR=/dev/shm is on a file system in memory .*", job.text(), re.M)
        job.check(len(said) == 1, f"says {said}")
        return "one line"


TESTS["the offload folder is on a tmpfs (single)"] = in_memory
for name in ("fp32", "bf16"):
    TESTS[f"a model outlives the modules, {name} (single)"] = functools.partial(kept, name)
TESTS["a script ends right after a collective (ddp)"] = ends_at_once


def timed(name):
    began = time.monotonic()
    try:
        return TESTS[name]()
    finally:
        runner.note(name, time.monotonic() - began, None, "-")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--castor", default=os.path.join(ROOT, "build", "bin", "castor"))
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--calls", type=int, default=faults.MOST)
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    if not os.access(args.castor, os.X_OK):
        sys.exit(f"{args.castor} is missing; run make first")
    faults.MOST = args.calls
    os.environ["FAILURE_TEST_CASTOR"] = os.path.abspath(args.castor)
    assert all(name in TESTS for name in FULL)
    passed = failed = 0
    chosen = [name for name in TESTS if not args.names or any(wanted in name for wanted in args.names)]
    left = [name for name in chosen if name in FULL] if runner.LENGTH == "short" and not args.names else []
    with runner.served(os.environ["FAILURE_TEST_CASTOR"], "gemini"), concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        started = {pool.submit(timed, name): name for name in chosen if name not in left}
        for done in concurrent.futures.as_completed(started):
            try:
                print(f"{started[done]} ... ok: {done.result()}", flush=True)
                passed += 1
            except Skipped as reason:
                print(f"{started[done]} ... skipped: {reason}", flush=True)
                runner.left_out.append(str(reason))
            except Exception as error:  # noqa: BLE001 - whatever it is, the other tests go on
                print(f"{started[done]} ... FAILED: {error if isinstance(error, Failed) else repr(error)}", flush=True)
                failed += 1
    runner.leave(len(left))
    runner.close(passed, failed)


if __name__ == "__main__":
    main()
