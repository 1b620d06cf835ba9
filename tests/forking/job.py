"""Does something before it imports PyTorch, trains three steps, and says what it is and has seen.

    job.py HABIT [OUT]      in OUT each rank writes a file of its own name, past what keeps ranks' files apart"""
import json
import os
import signal
import subprocess
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts"))
habit, out = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
seen, kept = {}, []


def later():
    pass


if habit == "reads":
    kept.append(open("lines"))
    kept[0].readline()
    kept.append(os.open("lines", os.O_RDONLY))
    os.read(kept[1], 3)

    def later():
        seen["rest"] = kept[0].read()
        seen["bytes"] = os.read(kept[1], 100).decode()
elif habit == "makes":
    os.makedirs("made/inside")
    with open("made/inside/file", "w") as file:
        file.write("whole")

    def later():
        with open("made/inside/file") as file:
            seen["made"] = file.read(), sorted(os.listdir("made"))
        os.makedirs("second")  # once by each rank, as if each were alone
elif habit == "writes":
    kept.append(open("file", "w"))
elif habit == "socket":
    import socket

    kept.append(socket.socket())
elif habit == "pipe":
    kept.append(os.pipe())
elif habit == "epoll":
    import select

    kept.append(select.epoll())
elif habit == "child":
    kept.append(subprocess.Popen(["sleep", "30"]))

    def later():
        kept[0].kill()
        kept[0].wait()
elif habit == "past child":
    subprocess.run([sys.executable, "-S", "-c", "pass"], check=True)
elif habit == "thread":
    import threading

    threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
elif habit == "timer":
    signal.signal(signal.SIGALRM, lambda *_: seen.update(alarm=True))
    signal.setitimer(signal.ITIMER_REAL, 1000)
elif habit == "shares memory":
    import mmap

    kept.append(mmap.mmap(-1, 4096))
elif habit == "shares a lock":
    import multiprocessing

    kept.append(multiprocessing.Lock())
elif habit == "numpy":
    import numpy

    seen["threads"] = len(os.listdir("/proc/self/task")) > 1  # OpenBLAS's, of rank 0

    def later():
        matrix = numpy.ones((300, 300))
        seen["product"] = float((matrix @ matrix).sum())
elif habit == "executes":
    if "AGAIN" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], dict(os.environ, AGAIN="1"))
elif habit == "asks a child":
    os.system(f"{sys.executable} -c 'import torch'")
elif habit == "sleeps":
    time.sleep(2.5)
elif habit == "cannot fork":
    def fork(stock=os.fork):
        os.fork = stock  # the audit forks, too
        raise BlockingIOError("made by the test")

    os.fork = fork
elif habit == "never":
    sys.exit(3)

print("before", flush=True)
import torch  # noqa: E402

from record import rank, write_for_all  # noqa: E402 - ../scripts

torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
losses = []
for step in range(3):
    loss = model(torch.randn(8, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
later()
print(f"after {losses}\n", end="")  # one write, also where output is unbuffered: lines of two ranks must not mix
if out:
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    told = {"rank": rank(), "losses": losses, "seen": seen, "parent": int(fields[1]), "group": int(fields[2]), "argv": sys.argv, "optimize": sys.flags.optimize,
            "input": sys.stdin.read() if rank() else "", "line": "CASTOR_FORK_LINE" in os.environ, "name": __name__, "hash": hash("text"),
            "files": sorted(int(name) for name in os.listdir("/proc/self/fd") if int(name) >= 200)}
    write_for_all(os.path.join(out, f"{rank()}.json"), json.dumps(told).encode())
