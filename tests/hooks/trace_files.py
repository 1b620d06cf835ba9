"""Reads the files of a trace: the layout of interpose/trace/format.h in ctypes."""
import ctypes
import glob
import os
from ctypes import c_char, c_int32, c_uint32, c_uint64

VERSION = 3
SLOT_MAX, GAUGE_MAX, NAMES_BYTES = 2560, 96, 98304
IDS_OF_KIND = {"call": 1024, "collective": 1024}  # the first kinds of record.def, in its order
KINDS = ["call", "collective"]
SAMPLE_SLOT, PHASE_SLOT, ALSO_SLOT = 2380, 2388, 2404  # where the ids of these kinds begin


class Counter(ctypes.Structure):
    _fields_ = [(name, c_uint64) for name in ("count", "bytes", "ns")]


class Gauge(ctypes.Structure):
    _fields_ = [("last", c_uint64), ("max", c_uint64)]


class Exception_(ctypes.Structure):
    _fields_ = [
        ("realtime_ns", c_uint64), ("by_other", c_uint32), ("reserved", c_uint32), ("type", c_char * 64), ("message", c_char * 320),
        ("place", c_char * 128),
    ]


class Counters(ctypes.Structure):
    _fields_ = [
        ("magic", c_uint64), ("version", c_uint32), ("file_bytes", c_uint32), ("slot_count", c_uint32),
        ("gauge_count", c_uint32), ("pid", c_uint32), ("rank", c_int32), ("uid", c_uint64), ("parent_uid", c_uint64),
        ("start_clock_ticks", c_uint64), ("start_monotonic_ns", c_uint64), ("start_realtime_ns", c_uint64),
        ("last_monotonic_ns", c_uint64), ("exit_state", c_uint32), ("recording", c_uint32), ("dropped", c_uint64),
        ("trace_max_bytes", c_uint64), ("names_used", c_uint32), ("exit_status", c_int32), ("exit_realtime_ns", c_uint64), ("host", c_char * 64),
        ("plugin", c_char * 32), ("command", c_char * 1024), ("outcome", c_char * 512), ("exception", Exception_), ("gauges", Gauge * GAUGE_MAX),
        ("counters", Counter * SLOT_MAX), ("name_offsets", c_uint32 * SLOT_MAX), ("names", c_char * NAMES_BYTES),
    ]


class Segment(ctypes.Structure):
    _fields_ = [
        ("magic", c_uint64), ("version", c_uint32), ("header_bytes", c_uint32), ("record_bytes", c_uint32),
        ("capacity", c_uint32), ("pid", c_uint32), ("thread", c_uint32), ("rank", c_int32), ("number", c_uint32),
        ("process_uid", c_uint64), ("base_monotonic_ns", c_uint64), ("base_realtime_ns", c_uint64),
        ("thread_name", c_char * 16), ("committed", c_uint64), ("tail", c_char * 168),
    ]


class Record(ctypes.Structure):
    _fields_ = [
        ("begin_ns", c_uint64), ("end_ns", c_uint64), ("kind", c_uint32), ("id", c_uint32), ("bytes", c_uint64),
        ("a", c_uint64), ("b", c_uint64), ("c", c_uint64), ("thread", c_uint32), ("reserved", c_uint32),
    ]


def _name(file, slot):
    offset = file.name_offsets[slot]
    start = Counters.names.offset + offset
    text = bytes(memoryview(file).cast("B")[start : start + 256])
    return text.split(b"\0")[0].decode() if offset else ""


class Process:
    """The counters of one process: `calls` and `collectives` by name, as {name: Counter}."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.file = Counters.from_buffer_copy(file.read())
        if self.file.version != VERSION:
            raise AssertionError(f"{path} has version {self.file.version}: adapt trace_files.py to format.h")
        self.pid, self.command = self.file.pid, self.file.command.decode()
        self.forked = self.file.parent_uid != 0
        base, self.names = 0, {}
        for kind in KINDS:
            table = self.names[kind] = {}
            for slot in range(base, base + IDS_OF_KIND[kind]):
                name = _name(self.file, slot)
                if name:
                    table[slot - base] = name
            # gloo's and NCCL's collectives have the same names.
            counted = {}
            for id, name in table.items():
                counter, total = self.file.counters[base + id], counted.setdefault(name, Counter())
                for field, _ in Counter._fields_:
                    setattr(total, field, getattr(total, field) + getattr(counter, field))
            setattr(self, kind + "s", {name: counter for name, counter in counted.items() if counter.count})
            base += IDS_OF_KIND[kind]


def read_counters(folder):
    return [Process(path) for path in sorted(glob.glob(os.path.join(folder, "*.counters")))]


def read_records(folder):
    """All complete records of all processes, as (pid, Record)."""
    records = []
    for path in sorted(glob.glob(os.path.join(folder, "*.trace"))):
        with open(path, "rb") as file:
            data = file.read()
        header = Segment.from_buffer_copy(data)
        for number in range(header.committed):
            at = header.header_bytes + number * header.record_bytes
            records.append((header.pid, Record.from_buffer_copy(data, at)))
    return records
