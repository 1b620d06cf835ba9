"""The nth call of the library's to a function of libc fails, on one rank of steps.py: the same numbers come out to the bit, or the
job ends with an error of Castor's that says what has failed. Never anything else: see Steps.outcome."""
import functools
import os
import re
import struct
import subprocess
import sys
import tempfile
import threading

from job import FOLDER, START_S, Failed, Job

ROOT = os.path.dirname(os.path.dirname(FOLDER))
TIMEOUT_S = 20  # CASTOR_TIMEOUT: some faults leave a rank without the other's word
SHIM = os.path.join(FOLDER, "fail_nth.c")
CALL, WAY = struct.Struct("24sQQQ"), struct.Struct("QQQQ")  # of the shim
# Both ranks, as torchrun would start them, without torchrun's own time.
RANKS = ("export LD_PRELOAD=$LD_PRELOAD:$FAIL_NTH; RANK=0 LOCAL_RANK=0 \"$@\" & first=$!; RANK=1 LOCAL_RANK=1 \"$@\" & second=$!; "
         "wait $first; a=$?; wait $second; b=$?; echo ends $a $b; exit $((a > b ? a : b))")
DISK = ("CASTOR_OFFLOAD_DIR=@", "CASTOR_CHUNK_SIZE=64K")
FORMS = {
    "memory": (),
    "disk": (*DISK, "CASTOR_PLACEMENT=static", "CASTOR_SHARD_PARAM_FRAC=1", "CASTOR_OFFLOAD_OPTIM_FRAC=1", "CASTOR_OFFLOAD_PARAM_FRAC=1"),
    "budget": (*DISK, "CASTOR_MEMORY_BUDGET=12M"),
}
EIO, EAGAIN, ENOMEM, EMFILE, ENOSPC, ENOSYS, EINTR, EPIPE, EOPNOTSUPP = 5, 11, 12, 24, 28, 38, 4, 32, 95
# What the functions fail with; the first errno is that of the quick tests.
ERRORS = {
    "accept4": (EMFILE, EINTR), "bind": (EIO,), "calloc": (ENOMEM,), "connect": (EAGAIN,), "eventfd": (EMFILE,), "fallocate": (EOPNOTSUPP,),
    "fcntl": (EIO,), "flock": (EIO,), "fstat": (EIO,), "ftruncate": (ENOSPC,), "getcwd": (ENOMEM,), "getrandom": (ENOSYS, "short"),
    "getsockname": (EIO,), "getsockopt": (EIO,), "ioctl": (EIO,), "listen": (EIO,), "madvise": (ENOMEM,), "malloc": (ENOMEM,),
    "memfd_create": (EMFILE,), "mincore": (EAGAIN,), "mmap": (ENOMEM,), "mprotect": (ENOMEM,), "munmap": (ENOMEM,), "open": (EMFILE, EIO),
    "posix_fadvise": (EIO,), "posix_fallocate": (ENOSPC, EINTR, EIO), "pread": (EIO, "short", EINTR), "pthread_create": (EAGAIN,),
    "pwrite": (ENOSPC, EIO, "short", EINTR), "pwritev": (ENOSPC,), "read": (EIO, "short", EINTR), "realloc": (ENOMEM,), "reallocarray": (ENOMEM,), "recv": (EIO, EINTR),
    "recvmsg": (EIO, EINTR), "send": (EPIPE, EINTR), "sendfile": (EIO, "short"), "sendmsg": (EPIPE, EINTR), "setsockopt": (EIO,),
    "socket": (EMFILE,), "stat": (EIO,), "sync_file_range": (EIO, ENOSPC), "unlink": (EIO,), "write": (ENOSPC, "short", EINTR),
    "cachestat": (ENOSYS, EIO), "userfaultfd": (ENOSYS,),
}
# What a fault costs that training does not need: the run goes on, and says so.
TOLD = r"castor: .*(no memory for the forked child's view of the weights|does not tell this forked child which pages are its own)"
# Words that an error of Castor's needs: what has failed. A traceback in Python's words alone is none.
SAYS = r"^\[rank{}\]: (?:castor\.agent\.core\.\w+: |\w+: )?castor: (?!rank \d \(pid|rank \d+: chunks|report|the trace)(.*)"
QUICK = (  # form, rule, how it ends
    ("memory", "malloc:1+:12:0", "no memory for the queue of gradients"),
    ("memory", "recvmsg:2:24:1", "cannot take the descriptors of the node store"),
    ("memory", "pwrite:1+:28:0", "the same numbers, and a warning"),
    ("disk", "mmap:30+:12:1", "cannot map|no memory"),
    ("disk", "posix_fallocate:17:5:1", "cannot allocate .* chunks"),
    ("disk", "sync_file_range:1+:5:0", "the same numbers, and a warning"),
    ("disk", "pthread_create:1+:11:1", "no thread for disk operations can be started"),
    ("budget", "calloc:40:12:0", "no memory for"),
    ("budget", "cachestat:1+:38:1", "the same numbers"),
)
MOST = 2  # of each function's calls, that fail alone; 0: by each way through the library, the first and the last
TESTS = {}
_lock = threading.RLock()
_built = tempfile.TemporaryDirectory(prefix="castor-failure-shim-")  # goes at the end


def once(function):
    """Made by the first test that needs it, and waited for by the others."""
    made = functools.cache(function)

    def locked(*arguments):
        with _lock:
            return made(*arguments)
    return locked


@once
def shim():
    path = os.path.join(_built.name, "fail_nth.so")
    subprocess.run(["cc", "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-g", "-fPIC", "-shared", "-I", os.path.join(FOLDER, "..", "..", "interpose"), "-o", path, SHIM, "-ldl"], check=True)
    return path


class Steps(Job):
    """One run of steps.py, of two ranks, in which a rule of the shim's holds."""

    def __init__(self, settings, rules="", arguments=(), plugin="gemini", before=(), variables=()):
        self.ranks = 2
        self.folder_make()
        environment = dict(variables, FAIL_NTH=shim(), FAIL_NTH_FOLDER=self.folder, FAIL_NTH_RULES=rules, WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
        command = ["sh", "-c", RANKS, "sh", sys.executable, os.path.join(FOLDER, "steps.py"), *arguments]
        self.start(["--plugin", plugin], (f"CASTOR_TIMEOUT={TIMEOUT_S}", *settings), command, environment, before)

    def calls(self, rank):
        """By function: how often it was called, how often it failed, and where first, as an address in the library."""
        found = {}
        with open(self.path(f"calls.{rank}"), "rb") as file:
            for name, *numbers in CALL.iter_unpack(file.read()):
                found[name.rstrip(b"\0").decode()] = tuple(numbers)
        return found

    def ways(self, rank):
        """By function: the ways through the library by which its calls came, and how many by each."""
        found = {name: {} for name in self.calls(rank)}
        names = [*found]
        with open(self.path(f"ways.{rank}"), "rb") as file:
            for way, count, function, _ in WAY.iter_unpack(file.read()):
                if way:
                    found[names[function]][way] = count
        return found

    def numbers(self):
        """What the ranks printed, in the order of each."""
        lines = sorted(line for _, line in self.lines if line and re.match(r"rank \d ", line))
        return [line for line in lines if "child" not in line], [line for line in lines if "child" in line]

    def said(self):
        """The first error in Castor's own words, but those that tell of another rank's."""
        for rank in range(self.ranks):
            found = re.search(SAYS.format(rank), self.text(), re.M)
            if found:
                return found[1]
        return None

    def outcome(self, seconds=START_S):
        """How it ended, in words, and whether the numbers are all there."""
        expected, children = reference()
        status = self.end(seconds)
        numbers, seen = self.numbers()
        ends = re.search(r"^ends (\d+) (\d+)$", self.text(), re.M)
        self.check(ends and max(int(ends[1]), int(ends[2])) == status, f"status {status}, of ranks {ends and ends[0]}")
        self.check(max(int(ends[1]), int(ends[2])) < 128, f"a rank was ended by a signal: {ends[0]}")
        wrong = [line for line in numbers if line not in expected] + [line for line in seen if line not in children]
        told = re.search(TOLD, self.text())
        self.check(not [line for line in wrong if "child" not in line or not told], f"another result: {wrong[:3]}")
        if status == 0:
            self.check(numbers == expected, "numbers are missing")
            warned = told or re.search(r"^castor: rank \d: .* failed \(errno", self.text(), re.M)
            return "the same numbers" + (", and a warning" if warned else "")
        words = self.said()
        self.check(words, f"status {status}, without a word of Castor's")
        return words


@once
def reference():
    """What plain PyTorch prints."""
    job = Steps((), plugin="none")
    try:
        job.check(job.end(START_S) == 0, f"plain PyTorch ends with {job.process.returncode}")
        return job.numbers()
    except Failed as failure:
        raise Failed(f"{failure}\n{job.text()}") from None
    finally:
        job.close()


def place(address):
    """Where in the library's source a call was made."""
    library = os.path.join(os.path.dirname(os.path.dirname(os.environ["FAILURE_TEST_CASTOR"])), "lib", "libcastor.so")
    done = subprocess.run(["addr2line", "-f", "-s", "-e", library, hex(address - 1)], capture_output=True, text=True, check=False)
    return " ".join(done.stdout.split())


def fault(form, rule):
    """The outcome under this rule (several, separated by commas), and where the first call failed."""
    job = Steps(FORMS[form], rule)
    where = "not reached"
    try:
        try:
            words = job.outcome()
            job.nothing_is_left()
        finally:
            for rank in range(2):
                if os.path.exists(job.path(f"calls.{rank}")):
                    for name, (_, failed, address) in job.calls(rank).items():
                        if failed:
                            where = f"{name} of rank {rank}, {failed} times, first in {place(address)}"
        return f"{words} ({where})"
    except Failed as failure:
        raise Failed(f"{failure} ({where})\n{job.text()}") from None
    finally:
        job.close()


@once
def counted(form):
    """How often each rank calls each function, and by which ways, in a run without a fault."""
    job = Steps(FORMS[form])
    try:
        words = job.outcome()
        job.check(words == "the same numbers", words)
        job.nothing_is_left()
        return [(job.calls(rank), job.ways(rank)) for rank in range(2)]
    except Failed as failure:
        raise Failed(f"{failure}\n{job.text()}") from None
    finally:
        job.close()


def spread(count, most):
    """Up to so many numbers from 1 to count, the first and the last among them."""
    if count <= most:
        return [*range(1, count + 1)]
    return sorted({1 + round(i * (count - 1) / max(most - 1, 1)) for i in range(most)})


def rules(form, function, most):
    """Some of its calls fail once, the ways of failing in turn; and all fail from the first and from the middle on."""
    made = []
    for rank, (calls, ways) in enumerate(counted(form)):
        count, errors = calls[function][0], ERRORS[function]
        if most:
            alone = [f"{function}:{number}" for number in spread(count, most)]
        else:
            alone = [f"{function}@{way:x}:{number}" for way, times in sorted(ways[function].items()) for number in sorted({1, times})]
        made += [f"{call}:{errors[(i + rank) % len(errors)]}:{rank}" for i, call in enumerate(alone)]
        made += [f"{function}:{number}+:{errors[0]}:{rank}" for number in {1, max(count // 2, 1)} if count]
    return made


def sweep(form, function):
    words, failed = {}, []
    for rule in rules(form, function, MOST):
        try:
            found = re.sub(r"\d+", "N", fault(form, rule).partition(" (")[0][:60])
            words[found] = words.get(found, 0) + 1
        except Failed as failure:
            failed.append(f"{rule}: {failure}")
    if failed:
        raise Failed("\n".join(failed))
    return ", ".join(f"{number} x {text}" for text, number in words.items()) or "never called"


def one(form, rule, says):
    words = fault(form, rule)
    if not re.match(says, words):
        raise Failed(f"expected {says}, found {words}")
    return words


# The numbers need not be exact: what they fail is one of many calls.
for form, rule, says in QUICK:
    TESTS[f"{rule} ({form})"] = functools.partial(one, form, rule, says)
for form in FORMS:
    for function in ERRORS:
        TESTS[f"every {function} ({form})"] = functools.partial(sweep, form, function)
# What the short length leaves out. sync_file_range can be done without as well; malloc fails in its tables too.
FULL = ("cachestat:1+:38:1 (budget)", "calloc:40:12:0 (budget)", *(name for name in TESTS if name.startswith("every ")))
