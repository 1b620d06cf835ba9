"""Ranks in tensor-parallel and data-parallel groups (Colossal-AI: colossalai.tensor.process_group)."""
import torch.distributed as dist

from .. import parallel
from ..cluster.process_groups import group_of, require

__all__ = ["ProcessGroup"]


class ProcessGroup:
    """`tp_degree` x `dp_degree` ranks: consecutive ones form tensor-parallel groups, and ranks of equal position in these form
    data-parallel groups.

    Args:
        rank: this process's rank in the job; only for scripts that pass it.
        ranks: the job's ranks that are in the group, all by default. Copied and sorted.
        tp_degree, dp_degree (or tp, dp): if one is missing it is the number of ranks divided by the other. Neither: tp 1.
        backend: of PyTorch's groups, the job's own by default.

    Call it on every rank of the job, also those outside `ranks`; their lists and local ranks are None. PyTorch's groups are
    made once for equal lists. RuntimeError: torch.distributed is not initialized. ValueError: degrees, ranks or `rank` that
    cannot be."""

    def __init__(self, rank=None, ranks=None, tp_degree=None, dp_degree=None, backend=None, *, tp=None, dp=None):
        require("ProcessGroup")
        self._rank = dist.get_rank()
        if rank is not None and rank != self._rank:
            raise ValueError(f"castor: ProcessGroup got rank {rank} in the process of rank {self._rank}")
        self._backend = backend or dist.get_backend()
        self._has_cpu_groups = False
        degrees = _one_of("tp_degree", tp_degree, tp), _one_of("dp_degree", dp_degree, dp)
        world = dist.get_world_size()
        self._rank_list, tensor_lists, data_lists = parallel.group_lists(range(world) if ranks is None else ranks, *degrees)
        if self._rank_list[-1] >= world:
            raise ValueError(f"castor: rank {self._rank_list[-1]} of a ProcessGroup is none of the job's {world} ranks")
        self._tp_degree, self._dp_degree = len(tensor_lists[0]), len(data_lists[0])
        for ranks_of_one in (*tensor_lists, *data_lists):
            group_of(ranks_of_one, self._backend)
        self._lists = tensor_lists, data_lists
        self._tp_rank_list = _own(tensor_lists, self._rank)
        self._dp_rank_list = _own(data_lists, self._rank)

    def rank(self):
        """This process's rank in the job."""
        return self._rank

    def ranks_in_group(self):
        return list(self._rank_list)

    def world_size(self):
        """The number of ranks in ranks_in_group()."""
        return len(self._rank_list)

    def tp_rank_list(self):
        return None if self._tp_rank_list is None else list(self._tp_rank_list)

    def dp_rank_list(self):
        return None if self._dp_rank_list is None else list(self._dp_rank_list)

    get_ranks_in_tp, get_ranks_in_dp = tp_rank_list, dp_rank_list

    def tp_local_rank(self):
        """This process's position in tp_rank_list()."""
        return None if self._tp_rank_list is None else self._tp_rank_list.index(self._rank)

    def dp_local_rank(self):
        """This process's position in dp_rank_list()."""
        return None if self._dp_rank_list is None else self._dp_rank_list.index(self._rank)

    def tp_world_size(self):
        return self._tp_degree

    def dp_world_size(self):
        return self._dp_degree

    def tp_process_group(self):
        """PyTorch's group of tp_rank_list(). RuntimeError: this rank is in none."""
        return self._of(self._tp_rank_list, self._backend)

    def dp_process_group(self):
        """PyTorch's group of dp_rank_list(). RuntimeError: this rank is in none."""
        return self._of(self._dp_rank_list, self._backend)

    @property
    def has_cpu_groups(self):
        """Whether set_cpu_groups() was called."""
        return self._has_cpu_groups

    def set_cpu_groups(self):
        """Makes groups over gloo of the same ranks. Call it on every rank of the job."""
        if not self._has_cpu_groups:
            for ranks_of_one in (*self._lists[0], *self._lists[1]):
                group_of(ranks_of_one, "gloo")
            self._has_cpu_groups = True

    def cpu_tp_process_group(self):
        """The group over gloo of tp_rank_list(). AssertionError: set_cpu_groups() was not called."""
        return self._of_cpu(self._tp_rank_list)

    def cpu_dp_process_group(self):
        """The group over gloo of dp_rank_list(). AssertionError: set_cpu_groups() was not called."""
        return self._of_cpu(self._dp_rank_list)

    def _of_cpu(self, ranks):
        assert self._has_cpu_groups, "castor: call set_cpu_groups() of the ProcessGroup first, on every rank"
        return self._of(ranks, "gloo")

    def _of(self, ranks, backend):
        if ranks is None:
            raise RuntimeError(f"castor: rank {self._rank} is not in the ProcessGroup of ranks {self._rank_list}")
        return group_of(ranks, backend)

    def _key(self):
        return self._backend, tuple(self._rank_list), self._tp_degree, self._dp_degree

    def __eq__(self, other):
        return isinstance(other, ProcessGroup) and self._key() == other._key()

    def __hash__(self):
        return hash(self._key())

    def __repr__(self):
        return f"ProcessGroup(ranks={self._rank_list}, tp={self._tp_degree}, dp={self._dp_degree}, backend={self._backend!r})"


def _one_of(name, value, short):
    if value is not None and short is not None and value != short:
        raise ValueError(f"castor: ProcessGroup got {name}={value} and {name[:2]}={short}")
    return short if value is None else value


def _own(lists, rank):
    return next((ranks for ranks in lists if rank in ranks), None)
