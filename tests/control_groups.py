"""A control group with little memory, for tests in which the kernel ends a process."""
import contextlib
import os
import time
import uuid

END_S = 30  # until the last process has left it


class Unavailable(Exception):
    """No such group can be made here, and why."""


def _memory_cgroup(limit_bytes):
    """The cgroup in which this process's memory counts: its folder, the files with the limits of memory and of swap, and
    the latter's value that leaves none."""
    with open("/proc/self/cgroup") as file:
        entries = [line.rstrip("\n").split(":", 2) for line in file]
    for number, controllers, path in entries:
        if "memory" in controllers.split(","):
            return "/sys/fs/cgroup/memory" + path, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", limit_bytes
    own = next((path for number, _, path in entries if number == "0"), "")
    return "/sys/fs/cgroup" + own, "memory.max", "memory.swap.max", 0


@contextlib.contextmanager
def memory_limit(limit_bytes):
    """A cgroup below this process's own, in which little memory may be used."""
    above, limit, swap_limit, no_swap = _memory_cgroup(limit_bytes)
    folder = os.path.join(above, f"castor-test-{uuid.uuid4().hex[:8]}")
    try:
        os.mkdir(folder)
    except OSError as error:
        raise Unavailable(f"no cgroup can be made in {above}: {error.strerror}") from None
    try:
        try:
            with open(os.path.join(folder, limit), "w") as file:
                file.write(str(limit_bytes))
            if os.path.exists(os.path.join(folder, swap_limit)):
                with open(os.path.join(folder, swap_limit), "w") as file:
                    file.write(str(no_swap))
        except OSError as error:  # cgroup v2: the one above gives its memory controller to none
            raise Unavailable(f"no limit of memory can be set below {above}: {error.strerror}") from None
        yield folder
    finally:
        end = time.monotonic() + END_S
        while True:
            try:
                os.rmdir(folder)
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)
