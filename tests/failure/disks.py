"""What may become of the folder for CASTOR_OFFLOAD_DIR, before and while chunks lie there; and ranks that are killed then."""
import functools
import os
import re
import signal

from faults import FORMS, Steps
from job import DIED, END_S, START_S, Failed, Skipped, fails
from limits import mount

CANNOT = r"cannot make a chunk file in CASTOR_OFFLOAD_DIR=\S+ \(errno \d+\): name a writable directory"
DISK_FORMS = ("disk", "budget")
TESTS = {}


def running(form, arguments=(), before=(), settings=None):
    """steps.py with its chunks on disk, as a context: what went wrong is told with all that it printed."""
    return _Running(Steps(FORMS[form] if settings is None else settings, arguments=arguments, before=before))


class _Running:
    def __init__(self, job):
        self.job = job

    def __enter__(self):
        return self.job

    def __exit__(self, kind, failure, trace):
        try:
            if kind is None:
                self.job.nothing_is_left()
        except Failed as left:
            raise Failed(f"{left}\n{self.job.text()}") from None
        finally:
            self.job.close()
        if kind is Failed:
            raise Failed(f"{failure}\n{self.job.text()}") from None


def no_such_folder(folder, before=()):
    """Each rank's end comes before its first step; rank 0, which makes the files, says why."""
    with running("disk", settings=(f"CASTOR_OFFLOAD_DIR={folder}", *FORMS["disk"][1:]), before=before) as job:
        if folder == "@/file":
            with open(job.path("offload/file"), "w", encoding="ascii"):
                pass
        words = job.outcome()
        job.check(re.match(CANNOT, words), f"says: {words}")
        job.check(not re.search(r"^rank \d step ", job.text(), re.M), "a step was taken")
        if folder == "@/file":
            os.unlink(job.path("offload/file"))
        return words


def removed(form):
    """The files have no names: they stay as long as the ranks do."""
    with running(form, ("--seconds", "0.2")) as job:
        job.wait_for(r"^rank \d step 1 ", START_S)
        os.rmdir(job.path("offload"))
        words = job.outcome()
        os.mkdir(job.path("offload"))
        job.check(words == "the same numbers", words)
        return "the run goes on"


def filled(form):
    """By another file, while the script trains."""
    with running(form, ("--fill", "2"), before=mount("24m")) as job:
        words = job.outcome()
        job.check(re.search(r"^disk: No space left on device$", job.text(), re.M), "the disk was not full")
        job.check(words == "the same numbers" or re.match("no room for .* chunks: give the job more", words), f"says: {words}")
        return words


def all_killed(form):
    """Castor itself too: nobody is left to remove what a job may leave."""
    with running(form, ("--seconds", "0.2")) as job:
        job.wait_for(r"^rank \d step 1 ", START_S)
        for pid in job.processes():
            os.kill(pid, signal.SIGKILL)
        job.end(END_S)
        return "nothing is left"


def locked():
    """Locked pages are the rank's own at once: what others write does not show in them, which is seen."""
    with running("memory", ("--lock", "1")) as job:
        words = job.outcome()
        if not re.search(r"^locked: 0$", job.text(), re.M):
            raise Skipped("no memory may be locked here")
        return words


for name, folder in (("is not there", "@/none"), ("is a file", "@/file"), ("is of a file system that has no O_TMPFILE", "/sys/kernel")):
    TESTS[f"the offload folder {name}"] = functools.partial(no_such_folder, folder)
TESTS["the offload folder is read-only"] = lambda: no_such_folder("@", mount("8m,ro"))
for form in DISK_FORMS:
    TESTS[f"the offload folder is removed while its files are used ({form})"] = functools.partial(removed, form)
    TESTS[f"the disk fills up while its files are used ({form})"] = functools.partial(filled, form)
    TESTS[f"all ranks and castor are killed ({form})"] = functools.partial(all_killed, form)
    TESTS[f"a rank is killed, with chunks on disk ({form})"] = functools.partial(fails, "ddp", "killed", DIED, status=1, settings=FORMS[form])
TESTS["a rank locks its memory"] = locked
# What the short length leaves out.
FULL = ("the offload folder is a file", "a rank locks its memory", *(name for name in TESTS if name.endswith("(disk)")))
