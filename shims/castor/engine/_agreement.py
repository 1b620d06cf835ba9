"""Ranks that must do the same say to each other what they are about to do: a difference is an error on all of them, where they would
wait forever for each other or compute with different parts."""
import json

import torch
import torch.distributed as dist

SIZE, CUT = 4096, 160  # bytes of what a rank says, and characters of each value; what is longer is cut
NO_BATCH, ENDED, LOST = "none", "at the end of the data", "lost: "  # what a rank says of its batch beside its samples


def exchange(said, group, device, what):
    """[(rank, what it said)] of the ranks of `group` (None: of all); `said`: a dict of names and values. RuntimeError: a rank has ended."""
    text = json.dumps({name: str(value)[:CUT] for name, value in said.items()}, ensure_ascii=False).encode(errors="replace")
    own = torch.zeros(SIZE, dtype=torch.uint8)
    own[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    own = own.to(device)
    ranks = range(dist.get_world_size()) if group is None else dist.get_process_group_ranks(group)
    every = [torch.empty_like(own) for _ in ranks]
    try:
        dist.all_gather(every, own, group=group)
    except RuntimeError as error:
        raise RuntimeError(f"castor: a rank has ended or cannot be reached, and this one waits for it to {what}; see its own messages "
                           f"({error})") from None
    return [(rank, json.loads(bytes(one.tolist()).rstrip(b"\0"))) for rank, one in zip(ranks, every)]


def compare(every, names, whom):
    """ValueError: ranks have said different values of a name."""
    for name in names:
        having = [(rank, said[name]) for rank, said in every if said[name] != NO_BATCH]
        for rank, value in having:
            if value != having[0][1]:
                raise ValueError(f"castor: {name} of rank {having[0][0]} is {having[0][1]}, and of rank {rank} {value}: {whom} must have the same")


def begin_batch(schedule, data_iter, needed, settings, trouble, group, device):
    """Loads a batch where there is an iterator or it is `needed`. On every rank of a pipeline: an error where one of them has a `trouble`
    (a text or None), gets no batch, or has other settings or another number of samples. StopIteration: the data has ended on all."""
    failure, batch = None, NO_BATCH
    if data_iter is not None or needed:
        try:
            schedule.load_batch(data_iter)
            batch = f"{schedule.batch_size} samples"
        except StopIteration:
            batch = ENDED
        except Exception as error:  # raised below, when the others know
            failure, batch = error, f"{LOST}{type(error).__name__}: {error}"
    said = {**settings, "the batch": batch, "trouble": trouble or ""}
    every = exchange(said, group, device, "begin a batch") if group is not None else [(0, said)]
    if failure is not None:
        raise failure
    compare(every, settings, "all ranks of a pipeline")
    for rank, other in every:
        if other["trouble"]:
            raise ValueError(f"castor: rank {rank}: {other['trouble']}")
        if other["the batch"].startswith(LOST):
            raise ValueError(f"castor: rank {rank} has no batch: {other['the batch'].removeprefix(LOST)}")
    if {other["the batch"] for _, other in every} - {NO_BATCH} == {ENDED}:
        raise StopIteration
    compare(every, ["the batch"], "all ranks of a pipeline")
