"""A script of one process that knows nothing of Castor: trains from a DataLoader, and saves what it saw.

    single.py --model mlp --optimizer sgd --out FILE [--steps N] [--clip NORM] [--parts N] [--method] [--autocast]
"""
import argparse
import os

import torch
from models import batch, build, loss_of, optimizer_for
from torch.utils.data import DataLoader, TensorDataset


def dataset(name, steps, parts):
    """Each rank's part of a batch is what batch() gives it, where there are so many ranks."""
    every = [batch(name, step, rank) for step in range(steps) for rank in range(parts)]
    return TensorDataset(*(torch.cat(column) for column in zip(*every)))


def pretrained(args):
    from transformers import GPT2Config, GPT2LMHeadModel

    if os.path.exists(args.pretrained):
        model = GPT2LMHeadModel.from_pretrained(args.pretrained)
    else:
        model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    words = torch.arange(16).reshape(2, 8)
    model(words, labels=words).loss.backward()
    optimizer.step()
    model.save_pretrained(args.pretrained)
    torch.save({"dtype": str(model.dtype)}, args.out + ".0")


def main():
    parser = argparse.ArgumentParser()
    for name in ("model", "optimizer", "out"):
        parser.add_argument("--" + name)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--parts", type=int, default=2)
    parser.add_argument("--clip", type=float)
    parser.add_argument("--method", action="store_true", help="calls a method of the model's, and writes through state_dict()")
    parser.add_argument("--autocast", action="store_true")
    parser.add_argument("--create-graph", action="store_true")
    parser.add_argument("--pretrained", help="the folder of a model of transformers', which is trained again where it is there")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.pretrained:
        return pretrained(args)
    model = build(args.model)
    optimizer = optimizer_for(args.optimizer, [p for p in model.parameters() if p.requires_grad])
    samples = dataset(args.model, args.steps, args.parts)
    losses, norms = [], []
    for x, y in DataLoader(samples, len(samples) // args.steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.autocast):
            loss = loss_of(model.forward(x).float() if args.method else model(x), y)
        loss.backward(create_graph=args.create_graph)
        if args.clip:
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip).item())
        optimizer.step()
        losses.append(loss.item())
        if args.method:
            for name, value in model.state_dict().items():
                if name.startswith("head"):
                    value.mul_(0.5)
    told = {"losses": losses, "norms": norms, "types": [str(p.dtype) for p in model.parameters()],
            "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(told, f"{args.out}.0")


if __name__ == "__main__":
    main()
