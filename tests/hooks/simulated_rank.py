"""One of two ranks on simulated devices: a few collectives of c10d over NCCL, and what Castor should have counted."""
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
dist.reduce(tensor, 0)
exchanged = torch.empty(1000, dtype=torch.float32, device="cuda")
dist.all_to_all_single(exchanged, tensor)
received = torch.empty(1000, dtype=torch.float32, device="cuda")
messages = [dist.P2POp(dist.isend, tensor, 1 - rank), dist.P2POp(dist.irecv, received, 1 - rank)]
for work in dist.batch_isend_irecv(messages):
    work.wait()
dist.barrier()
torch.cuda.synchronize()
digest = [gathered.cpu().tolist()[-1], part.cpu().tolist()[7], tensor.cpu().tolist()[11], exchanged.cpu().tolist()[600], received.cpu().tolist()[5]]
with open(os.path.join(sys.argv[1], f"rank-{rank}.json"), "w") as file:
    json.dump({"pid": os.getpid(), "digest": digest}, file)
dist.destroy_process_group()
