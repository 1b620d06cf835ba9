"""What a job's model data and other CPU blocks have of the node's memory, looked at from outside some fifty times a second.

Model data: pages of the store's files that are in the page cache (cachestat), each once, however many processes map them.
Other data: anonymous pages in the arena of each rank (PAGEMAP_SCAN), views that the script has edited among them.
Both are what the kernel has, not what Castor says. Linux 6.7 or later.
"""

import ctypes
import fcntl
import os
import threading
import time

PAGE = os.sysconf("SC_PAGE_SIZE")
SYS_CACHESTAT = 451
PAGEMAP_SCAN = 0xC0606610
PAGE_IS_FILE, PAGE_IS_PRESENT = 1 << 2, 1 << 3
ARENA_BYTES = 1 << 40  # REGION_BYTES_MAX of interpose/arena/arena.c
LOOK_SECONDS = 0.02
RANGES = 4096

libc = ctypes.CDLL(None, use_errno=True)


class Scan(ctypes.Structure):
    """struct pm_scan_arg"""

    _fields_ = [(name, ctypes.c_uint64) for name in (
        "size", "flags", "start", "end", "walk_end", "vec", "vec_len", "max_pages", "category_inverted", "category_mask",
        "category_anyof_mask", "return_mask")]


class Range(ctypes.Structure):
    _fields_ = [("start", ctypes.c_uint64), ("end", ctypes.c_uint64), ("categories", ctypes.c_uint64)]


class File:
    """One file of the store, open as long as it is looked at."""

    def __init__(self, path):
        self.descriptor = os.open(path, os.O_RDONLY)
        self.range = (ctypes.c_uint64 * 2)(0, 0)  # to the end
        self.found = (ctypes.c_uint64 * 5)()

    def resident_bytes(self):
        if libc.syscall(SYS_CACHESTAT, self.descriptor, ctypes.byref(self.range), ctypes.byref(self.found), 0):
            raise OSError(ctypes.get_errno(), "cachestat")
        return self.found[0] * PAGE


class Rank:
    """One process: its arena, whose address is found once."""

    def __init__(self, pid):
        self.pid, self.base = pid, None
        self.pagemap = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY)
        self.ranges = (Range * RANGES)()

    def find_arena(self):
        """The arena reserves its addresses at once: what is not yet in use of it is the largest mapping without access."""
        with open(f"/proc/{self.pid}/maps") as maps:
            for line in maps:
                words = line.split()
                begin, end = (int(word, 16) for word in words[0].split("-"))
                if words[1] == "---p" and len(words) == 5 and end - begin > ARENA_BYTES // 2:
                    self.base = end - ARENA_BYTES

    def other_bytes(self):
        if self.base is None:
            self.find_arena()
            if self.base is None:
                return 0
        pages, scan = 0, Scan(size=ctypes.sizeof(Scan), start=self.base, end=self.base + ARENA_BYTES,
                              vec=ctypes.addressof(self.ranges), vec_len=RANGES, category_inverted=PAGE_IS_FILE,
                              category_mask=PAGE_IS_FILE | PAGE_IS_PRESENT, return_mask=PAGE_IS_PRESENT)
        while scan.start < scan.end:
            count = fcntl.ioctl(self.pagemap, PAGEMAP_SCAN, scan)
            pages += sum(self.ranges[i].end - self.ranges[i].start for i in range(count))
            scan.start = scan.walk_end
            if count < RANGES:
                break
        return pages


class Disk:
    """The device below a folder: what it has read and written, of anybody's; nothing where it cannot be told."""

    def __init__(self, folder):
        device = os.stat(folder).st_dev
        self.path = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat"

    def moved_bytes(self):
        try:
            with open(self.path) as stat:
                words = stat.read().split()
        except OSError:
            return 0
        return 512 * (int(words[2]) + int(words[6]))


def anonymous_bytes(pid):
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


class Sampler(threading.Thread):
    """`samples`: (CLOCK_MONOTONIC, bytes of model data, of other data, that the disk has moved so far) until `stop`; `folder`: of the
    store's files."""

    def __init__(self, pids, folder, arenas=True):
        super().__init__(daemon=True)
        self.folder = os.path.realpath(folder)
        self.disk = Disk(self.folder)
        self.pids, self.samples, self.ended = pids, [], threading.Event()
        self.arenas = arenas  # False: of a job without Castor, whose memory is all in base_bytes
        self.files, self.base_bytes, self.error = {}, 0, None

    def find_files(self):
        for pid in self.pids:
            for name in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{name}"
                try:
                    target = os.readlink(path)
                    if target.startswith(self.folder + "/") and target.endswith("(deleted)"):
                        found = os.stat(path)
                        if (found.st_dev, found.st_ino) not in self.files:
                            self.files[found.st_dev, found.st_ino] = File(path)
                except FileNotFoundError:
                    pass  # closed meanwhile

    def run(self):
        try:
            self.look()
        except (FileNotFoundError, ProcessLookupError):
            pass  # the job has ended
        except OSError as error:
            self.error = f"{error.strerror or error}"

    def look(self):
        ranks, looked_at = [Rank(pid) for pid in self.pids if self.arenas], 0.0
        while not self.ended.is_set():
            begin = time.monotonic()
            if begin - looked_at > 0.5:
                self.find_files()
                looked_at = begin
            model = sum(file.resident_bytes() for file in self.files.values())
            other = [rank.other_bytes() for rank in ranks]
            if looked_at == begin:  # what processes have that the budget does not count
                self.base_bytes = max(self.base_bytes, sum(anonymous_bytes(pid) for pid in self.pids) - sum(other))
            self.samples.append((begin, model, sum(other), self.disk.moved_bytes()))
            self.ended.wait(max(0.0, LOOK_SECONDS - (time.monotonic() - begin)))

    def stop(self):
        self.ended.set()
        self.join()
        for file in self.files.values():
            os.close(file.descriptor)
