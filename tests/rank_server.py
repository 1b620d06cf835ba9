"""Ranks for many jobs under Castor from one `import torch`: rank_server.py SOCKET [MODULE]..., under `castor run`. The MODULEs are imported as well.

A launcher's ranks are forked from its import of PyTorch (shims/castor/agent/process/serving.py). This is such a launcher, but for ranks of other
jobs: start_ranks.py asks it, from inside of them, and gives each rank's words, environment, folder and files. Where a fork would not be as
a process that was started so, one is started. The server ends with its input, and says how many it was then, and why. In the short length
forks whose script comes to its end do not end as Python does (ends.py).

A request is JSON, {"words", "environment", "folder", "files": their numbers}, with the files. The answers are JSON: {"pid"}, and {"pid",
"status"} when the rank has ended. When a job goes away, what is left running is ended, and what failed ranks have started."""
import collections
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys

import ends
import start_ranks

_release = importlib._bootstrap._ModuleLock.release
_prepared = False


def prepare(lock):
    """At the end of the import of torch, where the process that ranks are forked from stops (serving.py)."""
    global _prepared
    _release(lock)
    if _prepared or lock.name != "torch" or lock.count:
        return
    _prepared = True
    serving = sys.modules["castor.agent.process.serving"]
    if serving.server is None:
        for name in sys.argv[2:]:
            importlib.import_module(name)
        if os.environ.get("TEST_LENGTH") != "all":
            serving.end = end
        gc.collect()
        gc.freeze()


def end(status):
    ends.at_once()
    os._exit(status)


importlib._bootstrap._ModuleLock.release = prepare
import torch  # noqa: E402, F401 - what ranks are forked from

importlib._bootstrap._ModuleLock.release = _release
from castor.agent.process import serving  # noqa: E402

REQUEST_BYTES, FILES_MOST = 1 << 20, 8


class Job:
    """A connection of start_ranks.py."""

    def __init__(self, line):
        self.line, self.ranks, self.failed = line, [], []

    def take(self):
        """One request, or the end. True: go on."""
        try:
            message, received, _, _ = socket.recv_fds(self.line, REQUEST_BYTES, FILES_MOST)
        except ConnectionResetError:  # it was ended before it read all answers
            message = b""
        if not message:
            for rank in self.ranks:
                rank.kill()
                rank.wait()
                self.failed.append(rank)
            for rank in self.failed:  # each began a session
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(rank.pid, signal.SIGKILL)
            return False
        asked = json.loads(message)
        files = {number: os.fdopen(file, "wb", 0) for number, file in zip(asked["files"], received)}
        os.chdir(asked["folder"])
        words = (sys.executable, "-u", *asked["words"])
        own = serving.server.environment.get("CASTOR_PLUGIN")
        alike = {"CASTOR_PLUGIN": own} if {own, asked["environment"].get("CASTOR_PLUGIN")} <= {*start_ranks.ENGINES} else {}
        reason = serving.server.why_not(words, {**asked["environment"], **alike})
        if reason:
            rank = subprocess.Popen(words, env=asked["environment"], stdin=subprocess.DEVNULL, stdout=files[1], stderr=files[2], start_new_session=True)
        else:
            rank = serving.Rank(serving.server, list(words), asked["environment"], files)
        os.chdir("/")
        made[reason] += 1
        for file in files.values():
            file.close()
        self.ranks.append(rank)
        self.say(pid=rank.pid)
        return True

    def look(self):
        for rank in [rank for rank in self.ranks if rank.poll() is not None]:
            self.ranks.remove(rank)
            self.failed += [rank] * (rank.returncode != 0)
            self.say(pid=rank.pid, status=rank.returncode)

    def say(self, **what):
        try:
            self.line.send(json.dumps(what).encode())
        except OSError:
            pass  # the job has gone, which take() sees


made = collections.Counter()  # by the reason why it was not forked


def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door.bind(sys.argv[1])
    door.listen(64)
    jobs = {}
    while True:
        ready, _, _ = select.select([0, door, *jobs], [], [], 0.01 if any(job.ranks for job in jobs.values()) else 1)
        for file in ready:
            if file == 0:
                print("ranks by the server: " + ", ".join(f"{count} {'started, since ' * bool(why)}{why or 'forked'}" for why, count in made.items()), flush=True)
                return
            if file is door:
                line, _ = door.accept()
                jobs[line] = Job(line)
            elif not jobs[file].take():
                jobs.pop(file).line.close()
        for job in jobs.values():
            job.look()


if __name__ == "__main__":
    main()
