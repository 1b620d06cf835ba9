"""Starts a program once per rank and waits for all: ranks.py COUNT PROGRAM [ARG]...

The output is that of each rank in turn; lines of ranks after the first carry no verdict of their own unless they fail.
The status is that of the first rank that failed.
"""
import os
import socket
import subprocess
import sys


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    count, program = int(sys.argv[1]), sys.argv[2:]
    env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(count))
    started = [subprocess.Popen([sys.executable, *program], env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(count)]
    status = 0
    for rank, process in enumerate(started):
        output, _ = process.communicate()
        for line in output.splitlines():
            print(line if rank == 0 or not line.startswith("ok ") else f"rank {rank}: {line}")
        status = status or process.returncode
    sys.exit(status)


if __name__ == "__main__":
    main()
