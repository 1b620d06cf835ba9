"""PyTorch's process groups, each made once."""
import torch.distributed as dist

_made = {}  # (ranks, backend): the process group, in the job of _job
_job = None  # PyTorch's process group of all ranks; another one is another job, since torch.distributed was ended and begun again


def require(what):
    """RuntimeError: torch.distributed is not initialized, which `what` needs."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(f"castor: a {what} needs torch.distributed: call castor.launch or castor.launch_from_torch first")


def group_of(ranks, backend=None):
    """PyTorch's process group of these ranks; `backend`: the job's by default. Every rank of the job calls it, in the same order; once it is made
    nobody waits."""
    global _job
    if _job is not dist.group.WORLD:
        _made.clear()
        _job = dist.group.WORLD
    key = tuple(sorted(ranks)), backend or dist.get_backend()
    if key not in _made:
        whole = len(key[0]) == dist.get_world_size() and key[1] == dist.get_backend()
        _made[key] = _job if whole else dist.new_group(list(key[0]), backend=key[1])
    return _made[key]
