"""Who writes, and who waits for whom. Rank 0 of the job writes, and may do so alone: nothing here is a collective of PyTorch.
Ranks leave notes for each other in the store of the process group, as they do when groups are made."""
import os
import time
from collections import Counter

import torch.distributed as dist

from ..agent import core
from ._files import CheckpointError

_gathers = [0]  # this rank's calls that gather distributed tensors
_saves = Counter()  # (store, path): this rank's saves there
_later = []  # (path, number) of rank 0's saves in the background
_SAVED, _FAILED = b"saved", b"failed"


def rank():
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def world():
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _store():
    return dist.distributed_c10d._get_default_store()


def _wait(store, key, seconds):
    """False: nobody has written the key in that time. The store's own wait would hold its connection."""
    end, pause = time.monotonic() + seconds, 0.001
    while not store.check([key]):
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
    return True


def meet(ranks, what, error=None):
    """Before a collective: all of these ranks are in `what`. Where some do not come, the others get an error instead of a hang.
    `error`: why this rank cannot take part; it is raised here, and the others get one too."""
    if len(ranks) < 2:
        if error is not None:
            raise error
        return
    store, number, seconds = _store(), _gathers[0] + 1, core.options.timeout
    key = f"castor/gather/{number}/"
    store.set(key + str(rank()), _SAVED if error is None else _FAILED)
    failed = None
    for other in ranks:
        if not _wait(store, key + str(other), seconds):
            store.delete_key(key + str(rank()))
            raise CheckpointError(f"castor: {what} gathers distributed tensors, so that all ranks must call it, and rank {other} did not within "
                                  f"{seconds:g} s: call it on every rank, or give gather_dtensor=False")
        if store.get(key + str(other)) == _FAILED:
            failed = other
    _gathers[0] = number
    if error is not None:
        raise error
    if failed is not None:
        raise CheckpointError(f"castor: rank {failed} cannot go on with {what}: its own error says why")


def note(checkpoint):
    """The number of this rank's save to a path."""
    key = id(_store()) if world() > 1 else 0, os.path.abspath(checkpoint)
    _saves[key] += 1
    return _saves[key]


def tell(checkpoint, number, is_saved, later=False):
    """Rank 0, after its save: the others may look for the files, or for an error. `later`: it is still written in the background."""
    if later:
        _later.append((checkpoint, number))
    elif world() > 1:
        _store().set(f"castor/checkpoint/{os.path.abspath(checkpoint)}/{number}", _SAVED if is_saved else _FAILED)


def settle():
    """Waits for this rank's saves in the background, and tells of them."""
    from . import _writer

    saved = False
    try:
        _writer.wait()
        saved = True
    finally:
        while _later:
            tell(*_later.pop(), saved)


def wait_for_save(checkpoint):
    """Before a load: what this rank has passed to save, rank 0 has written. Without an own call there is nothing to wait for."""
    if rank() == 0:
        return
    number = _saves.get((id(_store()), os.path.abspath(checkpoint)))
    if number is None:
        return
    key, seconds = f"castor/checkpoint/{os.path.abspath(checkpoint)}/{number}", core.options.timeout
    if not _wait(_store(), key, seconds):
        raise CheckpointError(f"castor: rank 0 has not saved {checkpoint} within {seconds:g} s: rank 0 must call the same saves as rank {rank()}, and "
                              "after those in the background load too, or synchronize()")
    if _store().get(key) == _FAILED:
        raise CheckpointError(f"castor: rank 0 could not save {checkpoint}: its own error says why")
