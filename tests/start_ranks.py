"""Starts the ranks of a job as torchrun does, without torchrun's own `import torch`: start_ranks.py COUNT SCRIPT [ARG]...

The environment and the end are torchrun's: when a rank fails, the others may end by themselves for a moment and are ended
then. The difference: the store that the ranks meet at is rank 0's. The status is 1 when a rank has failed.
"""
import os
import random
import signal
import socket
import subprocess
import sys
import time

SAY_S, END_S = 5, 30  # to SIGTERM, and from there to SIGKILL, when a rank has failed
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


def main():
    count, port = int(sys.argv[1]), free_port()
    # Each in a session of its own, as torchrun's.
    processes = [subprocess.Popen([sys.executable, *sys.argv[2:]], env=environment(rank, count, port), start_new_session=True)
                 for rank in range(count)]
    signal.signal(signal.SIGTERM, lambda *_: send(processes, signal.SIGTERM))
    sys.exit(0 if wait_for(processes) else 1)


if __name__ == "__main__":
    main()
