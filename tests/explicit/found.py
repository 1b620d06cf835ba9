"""What a rank found, written for the test at its end."""
import atexit
import gc
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


def end():
    """Ends the process groups, when nothing of the script's refers to them any more: their threads are joined then. Those of a
    group that lives on may still drop a tensor while the interpreter ends, and PyTorch then aborts the process."""
    import torch.distributed

    gc.collect()
    torch.distributed.destroy_process_group()


def _write():
    path = os.path.join(os.environ["EXPLICIT_TEST_FOUND"], f"found-{os.environ.get('RANK', '0')}.json")
    with open(path, "w") as file:
        json.dump(_found, file)


atexit.register(_write)
