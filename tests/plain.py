"""Runs scripts with plain PyTorch, many of them for one `import torch`: each rank is a fork of this process.

    tests/plain.py [--jobs 2]

Each line of standard input is a job in JSON: {"script", "stages": a list of arguments for each run of it, one after the other,
"ranks": of torchrun's environment, 0 for a script of one process, "folder": where it runs, "seconds": at most,
"environment": more of it}. The output goes to stdout.txt and stderr.txt in the folder. A job that ends prints a line of JSON,
{"job": its number, from 0, "status"}; 124: it took too long. The program ends with its input, when all jobs have ended.

Nothing of Castor's may be tested here: the library and the agent come with the start of a process.
"""
import argparse
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import time

import numpy
import torch
import torch._dynamo  # which a script's first optimizer imports

import ends

SAY_S = 5  # ranks that are left when one has failed may end by themselves
TOO_LONG = 124


class Becomes(BaseException):
    """Raised in a fork: it leaves this program's frames and becomes the script."""

    def __init__(self, script, arguments):
        super().__init__(script)
        self.words = [script, *arguments]


def exit_status(waited):
    status = os.waitstatus_to_exitcode(waited)
    return status if status >= 0 else 128 - status


def redirect(folder, stage):
    os.chdir(folder)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for descriptor, name in ((1, "stdout.txt"), (2, "stderr.txt")):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if stage == 0 else 0)
        file = os.open(name, flags, 0o666)
        os.dup2(file, descriptor)
        os.close(file)


def fork_rank(script, arguments, environment):
    pid = os.fork()
    if pid == 0:
        os.environ.update(environment)
        torch.distributed.set_debug_level_from_env()  # as its import has done
        numpy.random.seed()  # as at the start of a process; Python's own generator does it after a fork
        raise Becomes(script, arguments)
    return pid


def run_ranks(script, arguments, ranks, environment):
    """As torchrun does: the status, 1 when a rank fails."""
    meeting = socket.create_server(("127.0.0.1", 0))
    same = {**environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(meeting.getsockname()[1]), "TORCHELASTIC_USE_AGENT_STORE": "True",
            "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "TORCHELASTIC_RUN_ID": "plain", "TORCHELASTIC_RESTART_COUNT": "0"}
    left = {fork_rank(script, arguments, {**same, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(ranks)}
    # After the forks, since it starts a thread; the ranks' connections wait in the socket's queue.
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, master_listen_fd=meeting.detach())
    failed, until = 0, None
    while left:
        pid, waited = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            if until is not None and time.monotonic() > until:
                for rank in left:
                    os.kill(rank, signal.SIGKILL)
            time.sleep(0.02)
        elif exit_status(waited) and until is None:
            failed, until = 1, time.monotonic() + SAY_S
        left.discard(pid)
    del store
    return failed


def run_job(job):
    """In a process of its own, the first of a session: what becomes of all of the job's processes is one signal away."""
    os.setsid()
    environment = job.get("environment", {})
    for stage, arguments in enumerate(job["stages"]):
        redirect(job["folder"], stage)
        if job["ranks"]:
            status = run_ranks(job["script"], arguments, job["ranks"], environment)
        else:
            status = exit_status(os.waitpid(fork_rank(job["script"], arguments, environment), 0)[1])
        if status:
            break
    return status


def end(session):
    try:
        os.killpg(session, signal.SIGKILL)
    except ProcessLookupError:
        pass


def say(number, status):
    print(json.dumps({"job": number, "status": status}), flush=True)


class Input:
    """Jobs, as they come."""

    def __init__(self):
        self.rest, self.open, self.count = b"", True, 0

    def jobs(self, seconds):
        if not self.open:
            time.sleep(seconds)
        elif select.select([0], [], [], seconds)[0]:
            data = os.read(0, 1 << 16)
            self.open = bool(data)
            *lines, self.rest = (self.rest + data).split(b"\n")
            for line in lines:
                yield self.count, json.loads(line)
                self.count += 1


def run_jobs(most):
    given, waiting, running = Input(), [], {}  # by process: its job's number, when it must have ended
    while given.open or waiting or running:
        waiting += given.jobs(0.02)
        while waiting and len(running) < most:
            number, job = waiting.pop(0)
            pid = os.fork()
            if pid == 0:
                os._exit(run_job(job))
            running[pid] = number, time.monotonic() + job["seconds"]
        for pid, (number, until) in list(running.items()):
            ended, waited = os.waitpid(pid, os.WNOHANG)
            if ended or time.monotonic() > until:
                end(pid)  # and what it left running
                del running[pid]
                if not ended:
                    os.waitpid(pid, 0)
                say(number, exit_status(waited) if ended else TOO_LONG)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="so many at a time")
    args = parser.parse_args()
    gc.collect()
    gc.freeze()  # what all forks have stays in the pages that they share
    run_jobs(args.jobs)


if __name__ == "__main__":
    try:
        main()
        becomes = None
    except Becomes as child:
        becomes = child.words
    if becomes:
        sys.argv = becomes
        sys.path[0] = os.path.dirname(becomes[0])
        try:
            runpy.run_path(becomes[0], run_name="__main__")
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
        ends.at_once()
        os._exit(0)
