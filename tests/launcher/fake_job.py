"""Log directories of jobs that never ran: counter files and live files, written by the layouts of interpose/trace."""
import ctypes
import os
import re
import subprocess
import sys
import time
from ctypes import c_char, c_int32, c_uint8, c_uint32, c_uint64

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "hooks"))
import processes  # noqa: E402
import trace_files  # noqa: E402

COUNTERS_MAGIC, LIVE_MAGIC = int.from_bytes(b"castorct", "little"), int.from_bytes(b"castorlv", "little")
COLLECTIVE_SLOT, STEP_SLOT = 1024, 2048  # where the ids of these kinds begin
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), *[os.pardir] * 2, "interpose", "trace", "gauge.def")) as _file:
    GAUGES = {name: number for number, name in enumerate(re.findall(r'^GAUGE\(\w+, "(\w+)"', _file.read(), re.MULTILINE))}
COLLECTIVE, STORE, RECEIVE = 1, 2, 3
SENT, RECEIVED = 1, 2
NO_GROUP = 2**32 - 1


class Recent(ctypes.Structure):
    _fields_ = [("ordinal", c_uint64), ("begin_ns", c_uint64), ("bytes", c_uint64), ("what", c_char * 32)]


class Group(ctypes.Structure):
    _fields_ = [
        ("entered", c_uint64), ("rank", c_int32), ("size", c_uint32), ("used", c_uint32), ("enqueues", c_uint32),
        ("last_ns", c_uint64), ("recent", Recent * 8), ("name", c_char * 64), ("members", c_uint64 * 16),
    ]


class Wait(ctypes.Structure):
    _fields_ = [
        ("begin_ns", c_uint64), ("ordinal", c_uint64), ("bytes", c_uint64), ("kind", c_uint32), ("group", c_uint32),
        ("missing_pid", c_int32), ("claimed", c_uint32), ("what", c_char * 80), ("peer", c_int32), ("tag", c_int32),
    ]


class Channel(ctypes.Structure):
    _fields_ = [("begun", c_uint64), ("direction", c_uint32), ("group", c_uint32), ("peer", c_int32), ("tag", c_int32)]


class Device(ctypes.Structure):
    _fields_ = [
        ("begin_ns", c_uint64), ("progress_ns", c_uint64), ("enqueued_ns", c_uint64), ("enqueued_bytes", c_uint64), ("stream", c_uint64),
        ("device", c_int32), ("padding", c_uint32), ("call", c_char * 40), ("enqueued", c_char * 40),
    ]


class Live(ctypes.Structure):
    _fields_ = [
        ("magic", c_uint64), ("version", c_uint32), ("file_bytes", c_uint32), ("pid", c_uint32), ("rank", c_int32),
        ("process_uid", c_uint64), ("start_clock_ticks", c_uint64), ("stack_wanted", c_uint32),
        ("stack_given", c_uint32), ("stack_able", c_uint32), ("channels_lost", c_uint32), ("padding", c_uint8 * 72),
        ("groups", Group * 128), ("waits", Wait * 64), ("channels", Channel * 256), ("device", Device),
    ]


class Process:
    """One process of a job; `process` is a real one that runs, or None: the process has exited."""

    def __init__(self, folder, rank, process=None, plugin="none"):
        pid = process.pid if process else 2**22 + 100 + rank
        ticks = int(processes.fields(pid)[19]) if process else 1
        now = time.monotonic_ns()
        self.folder, self.name = folder, f"rank-{rank}.pid-{pid}"
        self.counters = trace_files.Counters(
            magic=COUNTERS_MAGIC, version=trace_files.VERSION, file_bytes=ctypes.sizeof(trace_files.Counters),
            slot_count=trace_files.SLOT_MAX, gauge_count=len(GAUGES), pid=pid, rank=rank, uid=1000 + rank, start_clock_ticks=ticks,
            start_monotonic_ns=now - 10**10, start_realtime_ns=time.time_ns() - 10**10, last_monotonic_ns=now,
            exit_state=0 if process else 1, names_used=1, host=os.uname().nodename.encode(), plugin=plugin.encode(),
            command=b"train.py",
        )
        self.live = Live(
            magic=LIVE_MAGIC, version=3, file_bytes=ctypes.sizeof(Live), pid=pid, rank=rank, process_uid=1000 + rank,
            start_clock_ticks=ticks,
        )
        self._names = 1

    def gauge(self, name, value):
        self.counters.gauges[GAUGES[name]].last = self.counters.gauges[GAUGES[name]].max = value

    def steps(self, count):
        self.gauge("steps", count)
        self.counters.counters[STEP_SLOT].count = count

    def collective(self, id, name, count, bytes, ns):
        slot = COLLECTIVE_SLOT + id
        counter = self.counters.counters[slot]
        counter.count, counter.bytes, counter.ns = count, bytes, ns
        if not self.counters.name_offsets[slot]:
            ctypes.memmove(ctypes.addressof(self.counters) + trace_files.Counters.names.offset + self._names, name, len(name))
            self.counters.name_offsets[slot] = self._names
            self._names += len(name) + 1

    def group(self, index, name, rank, ranks, entered):
        group = self.live.groups[index]
        group.used, group.name, group.rank, group.size, group.entered = 1, name, rank, len(ranks), entered
        for member in ranks:
            group.members[member // 64] |= 1 << (member % 64)

    def enqueued(self, index, what, seconds):
        """The group's last collective, begun so long ago; its work may be done or not."""
        group = self.live.groups[index]
        group.enqueues, group.last_ns = 1, time.monotonic_ns() - int(seconds * 1e9)
        recent = group.recent[group.entered % 8]
        recent.ordinal, recent.begin_ns, recent.what = group.entered, group.last_ns, what

    def channel(self, index, direction, peer, begun, group=0, tag=0):
        self.live.channels[index] = Channel(begun, direction, group, peer, tag)

    def wait(self, index, kind, what, seconds, group=NO_GROUP, ordinal=0, missing_pid=0, peer=0, tag=0):
        wait = self.live.waits[index]
        wait.peer, wait.tag = peer, tag
        wait.kind, wait.what, wait.group, wait.ordinal, wait.missing_pid = kind, what, group, ordinal, missing_pid
        wait.begin_ns, wait.claimed = time.monotonic_ns() - int(seconds * 1e9), 1

    def device(self, device, call, seconds, progress=None):
        """Waits for a device since so long ago; something was last seen to be done on it so long ago."""
        now = time.monotonic_ns()
        self.live.device = Device(
            now - int(seconds * 1e9), 0 if progress is None else now - int(progress * 1e9), now - int(seconds * 1e9), 64, 0, device, 0, call,
            b"cudaLaunchKernel",
        )

    def write(self):
        """Writes in place, as the process does."""
        for suffix, content in ((".counters", self.counters), (".live", self.live)):
            path = os.path.join(self.folder, self.name + suffix)
            file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
            os.pwrite(file, bytes(content), 0)
            os.close(file)


def sleeper(test):
    """A process that runs until the test ends."""
    process = subprocess.Popen(["sleep", "600"])

    def end():
        process.kill()
        process.wait()

    test.addCleanup(end)
    return process
