"""One rank that trains a GPT, for ranks.py: ranks_train.py ddp|fsdp2 LAYERS HIDDEN STEPS"""
import os
import sys

import torch
import torch.distributed as dist
from torch.nn import functional as F

from gpt import GPT, LENGTH, VOCABULARY


def main():
    kind, layers, hidden, steps = sys.argv[1], *map(int, sys.argv[2:])
    torch.set_num_threads(1)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = GPT(layers, hidden).cuda()
    if kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        wrapped = fully_shard(model)
    else:
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(steps):
        tokens = torch.randint(0, VOCABULARY, (2, LENGTH + 1), generator=torch.Generator().manual_seed(step)).cuda()
        optimizer.zero_grad()
        F.cross_entropy(wrapped(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
