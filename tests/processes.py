"""What /proc says of processes; nothing of one that has gone."""
import os


def words(pid):
    """Of its command line."""
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
            return file.read().split("\0")
    except OSError:
        return []


def fields(pid):
    """Of /proc/PID/stat, from the third on: its state, its parent, and so on."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def marked(mark, folder=None):
    """The other processes that were started with this NAME=VALUE in their environment, or run in the folder."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and int(name) != os.getpid():
                with open(f"/proc/{name}/environ", "rb") as file:
                    if mark.encode() in file.read().split(b"\0") or folder and os.readlink(f"/proc/{name}/cwd").startswith(folder):
                        found.append(int(name))
        except OSError:
            pass  # it has ended, or is not ours
    return found
