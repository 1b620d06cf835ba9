"""Who writes, and who waits for whom. Rank 0 of the job writes, and may do so alone: nothing here is a collective of PyTorch.
Ranks leave notes for each other in the store of the process group, as they do when groups are made."""
import functools
import json
import os
import time
from collections import Counter

import torch.distributed as dist

from ..agent import core
from ._files import CheckpointError

_gathers = [0]  # this rank's calls that gather distributed tensors
_trained = [0]  # this rank's steps of models that are divided over ranks, twice, and 1 more from the first pass after a step
_saves = Counter()  # (store, path): this rank's saves there
_SAVED, _FAILED = b"saved", b"failed"


def rank():
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def world():
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _store():
    return dist.distributed_c10d._get_default_store()


def _wait(done, end):
    """False: it was not done until `end`. The wait of the store itself would hold its connection."""
    pause = 0.001
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
    return True


def trains(steps=False):
    """A pass, or a step, that trains a model which is divided over ranks begins: a rank that waits for this one in meet() learns that it
    went on. Ranks need not have as many passes before a step, nor evaluate as often."""
    now = (_trained[0] // 2 + 1) * 2 if steps else _trained[0] | 1
    if world() > 1 and now != _trained[0]:
        _store().set(f"castor/trained/{rank()}", str(now))
    _trained[0] = now


def _went_on(store, other):
    key = f"castor/trained/{other}"
    return store.check([key]) and int(store.get(key)) > _trained[0]


def meet(ranks, what, error=None):
    """Before a collective: all of these ranks are in `what`. Where some do not come, the others get an error instead of a hang: at once, if
    they train on. `error`: why this rank cannot take part; it is raised here, and the others get one too."""
    if len(ranks) < 2:
        if error is not None:
            raise error
        return
    store, number, seconds = _store(), _gathers[0] + 1, core.options.timeout
    key = f"castor/gather/{number}/"
    store.set(key + str(rank()), _SAVED if error is None else _FAILED)
    failed = None
    for other in ranks:
        here = functools.partial(store.check, [key + str(other)])
        came = _wait(lambda: here() or _went_on(store, other), time.monotonic() + seconds)  # noqa: B023 - called at once
        if not here():
            store.delete_key(key + str(rank()))
            raise CheckpointError(f"castor: {what} gathers distributed tensors, so that all ranks must call it, and rank {other} "
                                  + ("went on without it" if came else f"did not within {seconds:g} s") + ": call it on every rank, or give gather_dtensor=False")
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


def tell(checkpoint, number, job):
    """Rank 0, after its save by this job: the others may look for the files. None: for an error. Of a save in the background they get
    to know how its end is seen, so that they need nothing of this rank any more."""
    if world() > 1:
        said = _FAILED if job is None else json.dumps(job.partial).encode() if job.partial else _SAVED
        _store().set(_key(checkpoint, number), said)


def _key(checkpoint, number):
    return f"castor/checkpoint/{os.path.abspath(checkpoint)}/{number}"


def settle():
    """Waits for this rank's saves in the background."""
    from . import _writer

    _writer.wait()


def wait_for_save(checkpoint):
    """Before a load: what this rank has passed to save, rank 0 has written. Without an own call there is nothing to wait for."""
    number = _saves.get((id(_store()), os.path.abspath(checkpoint))) if rank() else None
    if number is None:
        return
    seconds, end = core.options.timeout, time.monotonic() + core.options.timeout
    while True:
        if not _wait(lambda: _store().check([_key(checkpoint, number)]), end):
            raise CheckpointError(f"castor: rank 0 has not saved {checkpoint} within {seconds:g} s: rank 0 must call the same saves as rank {rank()}")
        said = _store().get(_key(checkpoint, number))
        if said in (_SAVED, _FAILED):
            saved = said == _SAVED
            break
        path, place, inode = json.loads(said)
        if not _wait(lambda: not os.path.lexists(path), end):
            raise CheckpointError(f"castor: rank 0 has not written {checkpoint} within {seconds:g} s of this load: its disk is slower than that, or it has "
                                  "ended; CASTOR_TIMEOUT sets the time")
        saved = _inode(place) == inode
        number += 1
        if saved or not _store().check([_key(checkpoint, number)]):
            break  # else rank 0 is ahead, and its next save may have replaced the file
    if not saved:
        raise CheckpointError(f"castor: rank 0 could not save {checkpoint}: its own error says why")


def _inode(path):
    try:
        return os.stat(path).st_ino
    except OSError:
        return None
