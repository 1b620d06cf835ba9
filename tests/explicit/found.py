"""What a rank found, written for the test at its end."""
import atexit
import gc
import importlib.util
import json
import os

_found = {}


def found(name, value):
    if name in _found:
        raise ValueError(f"{name} was found twice")
    _found[name] = value


def raised(kind, function, *arguments, **named):
    """The text of the error that the call must raise."""
    try:
        function(*arguments, **named)
    except kind as error:
        return str(error)
    raise AssertionError(f"{function} raised no {kind}")


def launch():
    """castor.launch with torchrun's variables; without them, as a job of one rank."""
    import socket

    import castor

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(os.environ.get("MASTER_PORT", free.getsockname()[1]))
    castor.launch(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)), os.environ.get("MASTER_ADDR", "127.0.0.1"), port, verbose=False)


def end():
    """Ends the process groups, when nothing of the script's refers to them any more: their threads are joined then. Those of a
    group that lives on may still drop a tensor while the interpreter ends, and PyTorch then aborts the process."""
    import torch.distributed

    gc.collect()
    torch.distributed.destroy_process_group()
    _leaving().await_idle()  # DistributedDataParallel's reducer keeps its group's threads


def _leaving():
    """What the agent waits for at the end of a rank, also where there is no agent."""
    place = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "shims", "castor", "agent", "process", "leaving.py")
    spec = importlib.util.spec_from_file_location("leaving", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _write():
    path = os.path.join(os.environ["EXPLICIT_TEST_FOUND"], f"found-{os.environ.get('RANK', '0')}.json")
    with open(path, "w") as file:
        json.dump(_found, file)


atexit.register(_write)
