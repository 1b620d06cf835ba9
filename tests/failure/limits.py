"""Memory, address space or disk is out: the tests that need a limit which the system sets for this job alone."""
import contextlib
import functools
import os
import re
import shutil
import subprocess
import time
import uuid

import control_groups
from job import DIED, END_S, START_S, Skipped, fails, started

LIMIT_BYTES = 64 << 20  # of the cgroup; the rank takes 512 MiB
FULL = r"no room for [\d.]+ \w+ of {} chunks: give the job more memory, more disk under CASTOR_OFFLOAD_DIR, or a smaller model"
SPACE = r"cannot map 2.0 GiB of a chunk \(errno 12\): raise the limit on address space \(ulimit -v\)"
TESTS = {}


def ended_by_the_kernel(kind, status):
    try:
        with control_groups.memory_limit(LIMIT_BYTES) as folder:
            return fails(kind, "cgroup", DIED, status=status, variables={"FAILURE_CGROUP": folder})
    except control_groups.Unavailable as reason:
        raise Skipped(str(reason)) from None


TESTS["the kernel ends a rank that is out of memory (ddp)"] = functools.partial(ended_by_the_kernel, "ddp", 1)
TESTS["the kernel ends a rank that is out of memory (single)"] = functools.partial(ended_by_the_kernel, "single", 137)


def no_address_space(chunk_size, reason, says):
    """A limit of rank 1's that the store's mappings do not fit into."""
    return fails("single", "address space", says, status=1, raised="castor: " + reason, checkpoint=None,
                 settings=[f"CASTOR_CHUNK_SIZE={chunk_size}"] if chunk_size else ())


TESTS["the store does not fit into the address space (single)"] = functools.partial(
    no_address_space, "", "cannot map the store's control block: raise ulimit -v", DIED)
TESTS["a chunk does not fit into the address space (single)"] = functools.partial(no_address_space, "2G", SPACE, None)


def mount(size):
    """A command that starts another one, to which the offload folder is a file system of this size."""
    script = f"mount -t tmpfs -o size={size} none OFFLOAD && exec \"$0\" \"$@\""
    for options in (["-m"], ["-rm"]):
        command = ["unshare", *options, "sh", "-c", "mount -t tmpfs -o size=64k none /mnt && exec true"]
        if shutil.which("unshare") and subprocess.run(command, capture_output=True, timeout=END_S).returncode == 0:
            return ["unshare", *options, "sh", "-c", script]
    raise Skipped("no file system can be mounted in a namespace of one's own")


def disk_is_full(kind, size, of):
    """CASTOR_OFFLOAD_DIR has no room for the parameters, the gradients or the states: it is said once for each amount that lacks."""
    with started(kind, "none", settings=("CASTOR_OFFLOAD_DIR=@", "CASTOR_CHUNK_SIZE=64K"), before=mount(size)) as job:
        status = job.end(START_S + END_S)
        job.check(status == 1, f"status {status}")
        said = re.findall(rf"^\[rank\d\]: .*castor: (.*{FULL.format(of)}.*)", job.text(), re.M)
        job.check(said and len(set(said)) == len(said), f"the ranks say {said}")
        job.check(not re.search(r"^rank \d step ", job.text(), re.M), "a step was taken")
        return "it is said once"


for kind in ("ddp", "single"):
    for size, of in (("256k", "gradient"), ("600k", "parameter"), ("1536k", "optimizer state")):
        TESTS[f"the disk has no room for {of} chunks ({kind})"] = functools.partial(disk_is_full, kind, size, of)


def disk_fills_up(kind):
    """By another file, when the store has what it needs: the run goes on."""
    with started(kind, "filled", settings=("CASTOR_OFFLOAD_DIR=@", "CASTOR_CHUNK_SIZE=64K"), before=mount("8m")) as job:
        job.wait_for(r"^rank 1 No space left on device$", START_S)
        status = job.end(END_S)
        job.check(status == 0 and len(re.findall(r"^rank \d done$", job.text(), re.M)) == job.ranks, f"status {status}")
        job.checkpoint_is_whole(6)
        return "the run goes on"


TESTS["the disk fills up in mid-run (single)"] = functools.partial(disk_fills_up, "single")
