"""Signals that come to a rank at some moment."""

import os
import signal
import threading
import time

import machine

SIGNALS = ("SIGKILL", "SIGKILL", "SIGTERM", "SIGSTOP")
FATAL = ("SIGKILL", "SIGTERM")


class Interrupter(threading.Thread):
    """Waits until the ranks of a job are there and `after_seconds` more, then sends one of them a signal. A rank that was
    stopped goes on after `stopped_seconds`."""

    def __init__(self, cut, mark, ranks):
        super().__init__(daemon=True)
        self.cut, self.mark, self.ranks = cut, mark, ranks
        self.over = threading.Event()
        self.done = {**cut, "sent": False, "fatal": cut["signal"] in FATAL}

    def rank_process(self):
        """The first process of the rank: its children carry the same environment."""
        found = {}
        for pid, environment in sorted(machine.processes_of(self.mark).items(), reverse=True):
            rank = machine.rank_of(environment)
            if rank is not None:
                found[rank] = pid
        return found.get(self.cut["rank"]) if len(found) >= self.ranks else None

    def run(self):
        while not self.over.wait(0.2):
            if self.rank_process():
                break
        if self.over.wait(self.cut["after_seconds"]):
            return
        pid = self.rank_process()
        if pid is None:
            return  # the job is about to end
        try:
            os.kill(pid, getattr(signal, self.cut["signal"]))
            self.done["sent"] = True
            if self.cut["signal"] == "SIGSTOP":
                time.sleep(self.cut["stopped_seconds"])
                os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass

    def end(self):
        """What was done; the job is over."""
        self.over.set()
        self.join()
        return self.done
