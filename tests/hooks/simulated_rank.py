"""One rank of a group on simulated devices: a few collectives of c10d over NCCL, and what Castor should have counted."""
import json
import os
import sys

import torch
import torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
tensor = torch.arange(1000, dtype=torch.float32).cuda()
for _ in range(3):
    dist.all_reduce(tensor)
gathered = torch.empty(1000 * world, dtype=torch.float32, device="cuda")
dist.all_gather_into_tensor(gathered, tensor)
part = torch.empty(500, dtype=torch.float32, device="cuda")
dist.reduce_scatter_tensor(part, torch.arange(500 * world, dtype=torch.float32).cuda())
dist.broadcast(tensor, 0)
torch.cuda.synchronize()
digest = [gathered.cpu().tolist()[-1], part.cpu().tolist()[7], tensor.cpu().tolist()[11]]
with open(os.path.join(sys.argv[1], f"rank-{rank}.json"), "w") as file:
    json.dump({"pid": os.getpid(), "digest": digest}, file)
dist.destroy_process_group()
