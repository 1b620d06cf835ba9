"""Starts the ranks of a job as torchrun does, without torchrun's own `import torch`: start_ranks.py COUNT SCRIPT [ARG]...
COUNT 0: the script as it is, with the environment that is there.

The environment and the end are torchrun's: when a rank fails, the others may end by themselves for a moment and are ended
then. The difference: the store that the ranks meet at is rank 0's. The status is 1 when a rank has failed.

The variable SERVERS_OF_RANKS names a folder with the socket of a process that forks them (rank_server.py), for each plugin that has one.
"""
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time

SAY_S, END_S = 5, 30  # to SIGTERM, and from there to SIGKILL, when a rank has failed
ENGINE, *_ = ENGINES = ("gemini", "ddp", "zero1", "zero2", "fsdp")  # the plugins with the node store; until a model is wrapped they do the same
SERVERS_OWN = ("PYTHONHASHSEED", "PYTHONUNBUFFERED")  # of the environment
PORTS = range(12000, 29000)  # below those that the kernel gives to connections: none of them takes it before rank 0 does


def free_port():
    for port in random.sample(PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass
    sys.exit("start_ranks.py: of 100 ports none is free")


def environment(rank, count, port):
    own = {"RANK": rank, "LOCAL_RANK": rank, "ROLE_RANK": rank, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1}
    own |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), count)
    own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0}
    return {"OMP_NUM_THREADS": "1", **os.environ, **{name: str(value) for name, value in own.items()}}


class Served:
    """A rank that the server has made; as subprocess.Popen."""

    ranks = {}
    line = None

    def __init__(self, words, environment):
        if Served.line is None:
            Served.line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            Served.line.connect(own_server())
        environment = {name: value for name, value in environment.items() if name not in SERVERS_OWN}
        files = [1, 2, *([int(environment["CASTOR_LOG_FILE"])] if "CASTOR_LOG_FILE" in environment else [])]
        asked = {"words": words, "environment": environment, "folder": os.getcwd(), "files": files}
        socket.send_fds(Served.line, [json.dumps(asked).encode()], files)
        self.pid = self.returncode = None
        while self.pid is None:
            told = Served.hear()
            if "status" not in told:
                self.pid = told["pid"]
        Served.ranks[self.pid] = self

    @staticmethod
    def hear():
        message = Served.line.recv(256)
        if not message:
            sys.exit("start_ranks.py: the server of ranks has ended")
        told = json.loads(message)
        if "status" in told:
            Served.ranks[told["pid"]].returncode = told["status"]
        return told

    def poll(self):
        while self.returncode is None and select.select([Served.line], [], [], 0)[0]:
            Served.hear()
        return self.returncode

    def send_signal(self, number):
        os.kill(self.pid, number)


def name_of(plugin, environment):
    return plugin + "-on-devices" * ("SIM_DEVICES" in environment) + "-compat" * ("CASTOR_COMPAT" in environment)


def server(plugin, environment=os.environ):
    """The socket of the server for this plugin, or for another one that begins alike; "": there is none."""
    folder = os.environ.get("SERVERS_OF_RANKS", "/nowhere")
    names = [name_of(name, environment) for name in (plugin, *[ENGINE] * (plugin in ENGINES))]
    return next(filter(os.path.exists, (os.path.join(folder, name) for name in names)), "")


def own_server():
    """Of the job that this process belongs to."""
    return server(os.environ["CASTOR_PLUGIN"]) if "CASTOR_PLUGIN" in os.environ else ""


def start(words, environment):
    if own_server():
        return Served(words, environment)
    # In a session of its own, as torchrun's.
    return subprocess.Popen([sys.executable, *words], env=environment, start_new_session=True)


def send(processes, number):
    for process in processes:
        if process.poll() is None:
            process.send_signal(number)


def wait_for(processes):
    """True when all have ended well."""
    failed = None
    while any(process.poll() is None for process in processes):
        since = time.monotonic() - failed if failed else 0
        if failed is None and any(process.poll() for process in processes):
            failed = time.monotonic()
        elif since > SAY_S + END_S:
            send(processes, signal.SIGKILL)
        elif since > SAY_S:
            send(processes, signal.SIGTERM)
        time.sleep(0.02)
    return not any(process.returncode for process in processes)


def alone(words):
    """In place of this process, which has the rank's status and passes signals on."""
    if not own_server():
        os.execv(sys.executable, [sys.executable, *words])
    rank = Served(words, dict(os.environ))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _: send([rank], number))
    while rank.returncode is None:
        Served.hear()
    if rank.returncode < 0:
        signal.signal(-rank.returncode, signal.SIG_DFL)
        os.kill(os.getpid(), -rank.returncode)
    sys.exit(rank.returncode)


def main():
    count, words = int(sys.argv[1]), sys.argv[2:]
    if count == 0:
        alone(words)
    port = free_port()
    processes = [start(words, environment(rank, count, port)) for rank in range(count)]
    signal.signal(signal.SIGTERM, lambda *_: send(processes, signal.SIGTERM))
    sys.exit(0 if wait_for(processes) else 1)


if __name__ == "__main__":
    main()
