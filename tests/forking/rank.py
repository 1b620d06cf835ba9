"""A rank of torchrun, which ends in one of several ways.

    rank.py WAY [WORD]..."""
import os
import sys

way = sys.argv[1]
before = ["torch" in sys.modules, os.environ["RANK"], os.environ["LOCAL_RANK"]]
if way == "threads":
    os.environ["OMP_NUM_THREADS"] = "2"
if way == "late":
    os.environ["TORCH_SHOW_CPP_STACKTRACES"] = "1"

import atexit  # noqa: E402
import signal  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402


def end_server():
    """Of torchrun's ranks, if there is one."""
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat") as file:
                comm, _, fields = file.read().partition("(")[2].rpartition(")")
        except OSError:
            continue
        if comm == "castor-ranks" and fields.split()[1] == str(os.getppid()):
            os.kill(int(name), signal.SIGKILL)


if way == "restarts" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] == "1":
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    if "RANKS_END_THEIR_SERVER" in os.environ:
        end_server()
    time.sleep(60)

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    torch.manual_seed(step * 10 + rank)
    loss = model(torch.randn(8, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def say(text):  # with one call: other ranks write to the same file
    os.write(1, f"rank {rank}: {text}\n".encode())


def told():
    with open("/proc/self/cmdline", "rb") as file:
        words = file.read().rstrip(b"\0").split(b"\0")
    with open("/proc/self/comm") as file:
        comm = file.read().strip()
    main = sys.modules["__main__"]
    return [before, loss.item(), sys.argv, sys.path[0], __name__, __file__, main.__file__, getattr(main.__spec__, "name", None), torch.get_num_threads(),
            [word.decode() for word in words], sys.orig_argv, comm, os.getcwd(), os.getpgid(0) == os.getpid() == os.getsid(0), sys.stdin.read(),
            type(sys.stdout.buffer).__name__, sys.stdout.write_through, signal.getsignal(signal.SIGINT) is signal.default_int_handler,
            "RANK" in os.environ, "CASTOR_FORK_SERVER" in os.environ, __builtins__ is sys.modules["builtins"], threading.current_thread() is threading.main_thread()]


def at_exit():
    say("exits")


atexit.register(at_exit)
say(told())
dist.barrier()
if way == "raises" and rank == 1:
    def fails():
        raise ValueError("made by the script")

    fails()
if way == "exits":
    dist.destroy_process_group()
    sys.exit(7 * rank)
if way == "interrupted":
    dist.destroy_process_group()
    if rank == 1:
        raise KeyboardInterrupt
if way == "killed" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if way == "thread":
    threading.Thread(target=lambda: (time.sleep(0.3), say("thread"))).start()
say("ends")
sys.stdout.write(f"rank {rank}: by Python's stream\n")
if dist.is_initialized():
    dist.destroy_process_group()
