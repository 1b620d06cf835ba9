"""Trains a byte-level GPT in one process:

    python gpt.py [--steps 10] [--width 320] [--layers 2] ... [--out DIR]
"""

import argparse
import time

import torch
from torch.utils.data import DataLoader

from model import GPT
from record import Recorder
from text import Windows, corpus


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    losses = [model(tokens, targets)[1].item() for tokens, targets in loader]
    model.train()
    return sum(losses) / len(losses)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--heads", type=int, default=5)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--out", help="write what the run saw here")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = GPT(context=args.context, layers=args.layers, width=args.width, heads=args.heads)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    data = corpus()
    train = DataLoader(Windows(data, args.context, args.steps * args.batch), args.batch, shuffle=True, drop_last=True)
    valid = DataLoader(Windows(data[100_000:], args.context, 10), 4)
    log = Recorder(args.out) if args.out else None

    step, began = 0, time.time()
    while step < args.steps:
        for tokens, targets in train:
            if step == args.steps:
                break
            _, loss = model(tokens, targets)
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            step += 1
            print(f"step {step} loss {loss.item():.4f} norm {norm.item():.4f}", flush=True)
            if log:
                log.note("loss", loss)
                log.note("norm", norm)
    score = evaluate(model, valid)
    print(f"validation loss {score:.4f}")
    if log:
        log.note("loss", score)
        log.step(model=model, optimizer=optimizer)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, log.path("gpt.pt"))
        log.close()
    else:
        print(f"{(time.time() - began) / args.steps * 1000:.0f} ms per step")


if __name__ == "__main__":
    main()
