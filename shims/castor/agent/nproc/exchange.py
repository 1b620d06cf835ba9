"""What the ranks of a single-process script tell each other: tensors of the host through the node's memory, those of devices by NCCL."""
import torch
import torch.distributed as dist

from .. import core
from ..device_ranks import own_group

GATHER_BYTES = 16 << 20  # of each rank, at most, in one core.gather()


def gathered(job, own, what, out=None):
    """Each rank's bytes, in rank order, as many rows of `out` (uint8): `own` is a contiguous tensor of as many bytes on all ranks, and all are
    on the host, or each on its rank's device."""
    data = own.reshape(-1).view(torch.uint8)
    if out is None:
        out = torch.empty(job.world, len(data), dtype=torch.uint8, device=own.device)
    if own.is_cuda:
        dist.all_gather_into_tensor(out.view(-1), data, group=own_group.group_of(job.group).process_group)
        return out
    if job.nodes is not None:
        job.nodes.gather_bytes(data, out, what)
        return out
    for at in range(0, len(data), GATHER_BYTES):
        length = min(GATHER_BYTES, len(data) - at)
        piece = out if length == len(data) else torch.empty(job.world, length, dtype=torch.uint8, device="cpu")
        core.gather(job.group.handle, data[at:].data_ptr(), length, piece.data_ptr(), what.encode())
        if piece is not out:
            out[:, at:at + length] = piece
    return out
