"""What collectives between pairs of ranks cost, measured (Colossal-AI: colossalai.device.alpha_beta_profiler)."""
import time

import torch
import torch.distributed as dist

from ..cluster.process_groups import group_of, require

__all__ = ["AlphaBetaProfiler"]

_HOST, _DEVICE = 16 << 20, 1 << 30  # bytes of the largest message


class AlphaBetaProfiler:
    """Measures alpha, the seconds that a collective takes before the first byte, and beta, the seconds for each byte. Every rank of the job makes it.

    Args:
        physical_devices: a list of ranks.
        alpha_beta_dict: {(rank, rank): (alpha, beta)}, where it is known already; None: it is measured.
        ctype: "a": all-reduce; "b": broadcast.
        warmup, repeat: collectives before, and of, each measurement.
        latency_iters: alpha is the median of messages of 4, 8, ... bytes; so many.
        homogeneous_tolerance: betas that differ by less than this fraction are equal for search_best_logical_mesh().

    RuntimeError: torch.distributed is not initialized. ValueError: another ctype."""

    def __init__(self, physical_devices, alpha_beta_dict=None, ctype="a", warmup=5, repeat=25, latency_iters=5, homogeneous_tolerance=0.1):
        if ctype not in ("a", "b"):
            raise ValueError(f"castor: AlphaBetaProfiler(ctype={ctype!r}): expected 'a' (all-reduce) or 'b' (broadcast)")
        require("AlphaBetaProfiler")
        self.physical_devices, self.world_size = list(physical_devices), len(physical_devices)
        self.ctype, self.warmup, self.repeat, self.latency_iters = ctype, warmup, repeat, latency_iters
        self.homogeneous_tolerance = homogeneous_tolerance
        pairs = [(one, other) for i, one in enumerate(self.physical_devices) for other in self.physical_devices[i + 1:]]
        self.process_group_dict = {pair: group_of(pair) for pair in pairs}
        self.alpha_beta_dict = self.profile_ab() if alpha_beta_dict is None else alpha_beta_dict

    def _seconds(self, ranks, group, size):
        """Of one collective of `size` bytes, the mean; None: this rank is not in the group."""
        if dist.get_rank() not in ranks:
            return None
        on_device = dist.get_backend(group) == "nccl"
        buffer = torch.ones(max(size // 4, 1), device="cuda" if on_device else "cpu")
        begin = 0.0
        for i in range(self.warmup + self.repeat):
            if i == self.warmup:
                if on_device:
                    torch.cuda.synchronize()
                dist.barrier(group=group)
                begin = time.perf_counter()
            if self.ctype == "a":
                dist.all_reduce(buffer, group=group)
            else:
                dist.broadcast(buffer, ranks[0], group=group)
        if on_device:
            torch.cuda.synchronize()
        return (time.perf_counter() - begin) / self.repeat

    def profile_latency(self, process_group, pg_handler):
        """Seconds of a collective of few bytes; None on ranks outside of the group.

        Args: process_group: its ranks. pg_handler: PyTorch's group of them."""
        found = [self._seconds(process_group, pg_handler, 4 << i) for i in range(self.latency_iters)]
        return None if found[0] is None else sorted(found)[len(found) // 2]

    def profile_bandwidth(self, process_group, pg_handler, maxbytes=None):
        """Bytes in a second; None on ranks outside of the group. maxbytes: of the message; None: 16 MiB, over NCCL 1 GiB."""
        if dist.get_rank() not in process_group:
            return None
        size = maxbytes or (_DEVICE if dist.get_backend(pg_handler) == "nccl" else _HOST)
        return size / self._seconds(process_group, pg_handler, size)

    def _measured(self, ranks, group):
        """(alpha, bandwidth), on all ranks what the group's first one has measured."""
        said = [self.profile_latency(ranks, group), self.profile_bandwidth(ranks, group)]
        dist.broadcast_object_list(said, src=ranks[0])
        return tuple(said)

    def profile_ab(self):
        """{(rank, rank): (alpha, beta)} of each two ranks, in both orders."""
        found = {}
        for pair, group in self.process_group_dict.items():
            alpha, bandwidth = self._measured(pair, group)
            found[pair] = alpha, 1 / bandwidth
        return {**found, **{pair[::-1]: of for pair, of in found.items()}}

    def search_best_logical_mesh(self):
        """A mesh as rows of ranks: of the fastest pairs of like betas that connect all ranks, those that are connected are a row; where all are alike,
        or none connect, as many rows as columns, or half of it. ValueError: the number of ranks is no power of two."""
        if self.world_size & (self.world_size - 1) or not self.world_size:
            raise ValueError(f"castor: a logical mesh of {self.world_size} ranks: expected a power of two")
        alike = {}  # the first beta of pairs that have about the same: these pairs
        for pair, (_, beta) in self.alpha_beta_dict.items():
            base = next((of for of in alike if of * (1 - self.homogeneous_tolerance) <= beta <= of * (1 + self.homogeneous_tolerance)), beta)
            alike.setdefault(base, []).append(pair)
        for beta in sorted(alike)[:-1]:
            if len({rank for pair in alike[beta] for rank in pair}) == self.world_size:
                return self._connected(alike[beta])
        rows = 1 << (self.world_size.bit_length() - 1) // 2
        columns = self.world_size // rows
        return [self.physical_devices[row * columns:(row + 1) * columns] for row in range(rows)]

    def _connected(self, pairs):
        rows = []
        for first in self.physical_devices:
            if any(first in row for row in rows):
                continue
            row, left = [first], [first]
            while left:
                rank = left.pop()
                for other in dict.fromkeys(one for pair in pairs if rank in pair for one in pair):
                    if other not in row:
                        row.append(other)
                        left.append(other)
            rows.append(row)
        return rows

    def extract_alpha_beta_for_device_mesh(self):
        """(alphas, betas) of the best mesh's two axes, for DeviceMesh(mesh_alpha, mesh_beta). As in the original, betas are seconds for 1e10 bytes.
        Every rank of the job calls it."""
        mesh = self.search_best_logical_mesh()
        measured = [self._measured(ranks, group_of(ranks)) for ranks in ([row[0] for row in mesh], mesh[0])]
        return [alpha for alpha, _ in measured], [1e10 / bandwidth for _, bandwidth in measured]
