"""castor.cluster and castor.accelerator on each rank: see test_cluster.py for what must be found."""
import contextlib
import io
import time

import torch
import torch.distributed as dist

from castor.accelerator import get_accelerator
from castor.cluster import DistCoordinator, ProcessGroupMesh
from found import end, found, launch, raised

found("before launch", [raised(RuntimeError, DistCoordinator), raised(RuntimeError, ProcessGroupMesh, 1)])
launch()
rank, world = dist.get_rank(), dist.get_world_size()

# ---- the grid
mesh = ProcessGroupMesh(2, world // 2)
found("grid", [mesh.shape, mesh.size(), mesh.size(1), mesh.coordinate(), mesh.coordinate(0), mesh.rank])
rows, columns = mesh.get_group_along_axis(1), mesh.create_group_along_axis(0)
total = torch.tensor([float(rank)])
dist.all_reduce(total, group=rows)
found("groups", [mesh.get_ranks_in_group(rows), mesh.get_ranks_in_group(columns), total.item(), mesh.get_group_along_axis(1) is rows,
                 mesh.get_group(mesh.get_ranks_in_group(rows)[::-1]) is rows])
both = mesh.create_group_along_axis([0, 1])
some = mesh.create_group_along_axis(1, [0])
found("chosen", [mesh.get_ranks_in_group(both), None if some is None else mesh.get_ranks_in_group(some)])
found("coordinates", [ProcessGroupMesh.unravel(5, (2, 3)), ProcessGroupMesh.ravel((1, 2), (2, 3)), ProcessGroupMesh.ravel((3, -1), (2, 3), "wrap"),
                      ProcessGroupMesh.ravel((3, -1), (2, 3), "clip"), ProcessGroupMesh.get_coords_along_axis((0, 0), 1, [0, 2]),
                      ProcessGroupMesh.get_coords_along_axis((0, 0, 4), [0, 1], [[0, 1], [5, 6]])])
found("bad", [raised(ValueError, ProcessGroupMesh, world, 2), raised(ValueError, ProcessGroupMesh.ravel, (2, 0), (2, 3)),
              raised(ValueError, ProcessGroupMesh.unravel, 6, (2, 3)), raised(ValueError, ProcessGroupMesh.ravel, (0, 0), (2, 3), "round")])

# ---- the coordinator
coordinator = DistCoordinator()
found("ranks", [coordinator is DistCoordinator(), coordinator.rank, coordinator.world_size, coordinator.is_master(), coordinator.is_master(rows),
                coordinator.is_last_process(), coordinator.is_node_master() == (coordinator.local_rank == 0)])
with contextlib.redirect_stdout(io.StringIO()) as printed:
    coordinator.print_on_master("master")
    coordinator.print_on_node_master("node")
    coordinator.print_on_master("row", rows)
found("printed", printed.getvalue().split())
found("on the master only", coordinator.on_master_only()(lambda value: value + 1)(rank))
with coordinator.priority_execution(executor_rank=1):
    entered = time.monotonic()
    if rank == 1:
        time.sleep(0.5)
    left = time.monotonic()
times = [None] * world
dist.all_gather_object(times, (entered, left))
found("rank 1 goes first", all(other[0] >= times[1][1] for number, other in enumerate(times) if number != 1))
coordinator.block_all()

# ---- the accelerator
accelerator = get_accelerator()
accelerator.synchronize()
accelerator.empty_cache()
accelerator.set_device()
with accelerator.autocast(dtype=torch.bfloat16):
    cast = (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
found("accelerator", [accelerator.name, accelerator.communication_backend, accelerator.is_synchronous, str(accelerator.get_current_device()), accelerator.device_count(),
                      accelerator.is_available(), accelerator.get_version(), str(cast), get_accelerator() is accelerator])
end()
