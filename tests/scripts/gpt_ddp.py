"""Trains a byte-level GPT with DistributedDataParallel:

    torchrun --nproc-per-node 2 gpt_ddp.py [--steps 10] [--width 320] [--layers 2] ... [--out DIR]
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from model import GPT
from record import Recorder
from text import Windows, corpus


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4, help="sequences per rank")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--heads", type=int, default=5)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--out", help="write what the run saw here")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    model = GPT(context=args.context, layers=args.layers, width=args.width, heads=args.heads)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    data = Windows(corpus(), args.context, args.steps * args.batch * dist.get_world_size())
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    log = Recorder(args.out) if args.out else None

    step, epoch, began = 0, 0, time.time()
    while step < args.steps:
        sampler.set_epoch(epoch)
        for tokens, targets in loader:
            if step == args.steps:
                break
            _, loss = model(tokens, targets)
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            step += 1
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f} norm {norm.item():.4f}", flush=True)
            if log:
                log.note("loss", loss)
                log.note("norm", norm)
        epoch += 1
    if log:
        log.step(model=model, optimizer=optimizer)
        if rank == 0:
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, log.path("gpt.pt"))
        log.close()
    elif rank == 0:
        print(f"{(time.time() - began) / args.steps * 1000:.0f} ms per step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
