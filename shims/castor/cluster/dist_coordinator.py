"""Who prints, who goes first, who waits (Colossal-AI: colossalai.cluster.dist_coordinator)."""
import contextlib
import functools
import os

import torch.distributed as dist

from .process_groups import require

__all__ = ["DistCoordinator"]


class DistCoordinator:
    """The same object in all places of a process. RuntimeError: torch.distributed is not initialized."""

    _one = None

    def __new__(cls):
        if cls._one is None:
            require("DistCoordinator")
            cls._one = super().__new__(cls)
        return cls._one

    @property
    def rank(self):
        return dist.get_rank()

    @property
    def world_size(self):
        return dist.get_world_size()

    @property
    def local_rank(self):
        """On this node; the rank, if no launcher has set LOCAL_RANK."""
        return int(os.environ.get("LOCAL_RANK", dist.get_rank()))

    def is_master(self, process_group=None):
        """This is rank 0 of the group, or of the job."""
        return dist.get_rank(process_group) == 0

    def is_node_master(self):
        return self.local_rank == 0

    def is_last_process(self, process_group=None):
        return dist.get_rank(process_group) == dist.get_world_size(process_group) - 1

    def print_on_master(self, msg, process_group=None):
        if self.is_master(process_group):
            print(msg)

    def print_on_node_master(self, msg):
        if self.is_node_master():
            print(msg)

    @contextlib.contextmanager
    def priority_execution(self, executor_rank=0, process_group=None):
        """What is inside is done on the group's rank `executor_rank` first (to download, say), and then on all others."""
        first = dist.get_rank(process_group) == executor_rank
        if not first:
            dist.barrier(group=process_group)
        try:
            yield
        finally:
            if first:
                dist.barrier(group=process_group)

    def destroy(self, process_group=None):
        """Ends the group, or torch.distributed."""
        dist.destroy_process_group(process_group)
        if process_group is None:
            DistCoordinator._one = None

    def block_all(self, process_group=None):
        """Returns when all ranks of the group have called it."""
        dist.barrier(group=process_group)

    def on_master_only(self, process_group=None):
        """Decorates a function that is called on rank 0 of the group alone; elsewhere it returns None."""

        def decorator(function):
            @functools.wraps(function)
            def called(*args, **kwargs):
                return function(*args, **kwargs) if self.is_master(process_group) else None

            return called

        return decorator
