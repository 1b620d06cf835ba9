"""What a job may leave behind, and must not."""

import os
import time

import machine

def sockets_without_process():
    """Castor's abstract sockets that no process holds, as one that was lost in a message would be."""
    held = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            held.update(os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            continue  # it has ended
    with open("/proc/net/unix") as file:
        listed = [line.split() for line in file if "@castor" in line]
    return sorted(words[7] for words in listed if len(words) > 7 and f"socket:[{words[6]}]" not in held)


def files_of(folder):
    return [os.path.join(base, name) for base, _, names in os.walk(folder) for name in names]


def left_behind(job, finished):
    """What is left of a job that has ended, as sentences. A file in memory lives as long as a process that holds or maps it, so
    that none is left without a process. Files on disk could be: of temporary ones and of chunks."""
    problems = []
    if finished.left_running:
        problems.append(f"{finished.left_running} processes were left running")
    deadline = time.monotonic() + 10
    while (left := machine.processes_of(job["mark"])) and time.monotonic() < deadline:
        time.sleep(0.2)  # a process that was killed leaves the table a moment later
    if left:
        problems.append(f"processes {sorted(left)} are left")
    if sockets_without_process():
        time.sleep(1)  # the two lists are not read at one moment
        lost = sockets_without_process()
        if lost:
            problems.append(f"sockets that no process holds: {lost[:4]}")
    offload = job["options"].get("CASTOR_OFFLOAD_DIR")
    if offload and files_of(offload):
        problems.append(f"files are left where chunks are kept: {files_of(offload)[:4]}")
    temporary = os.path.join(job["folder"], "tmp")
    strange = [path for path in files_of(temporary) if "castor" in os.path.basename(path)]
    if strange:
        problems.append(f"temporary files are left: {strange[:4]}")
    return problems
