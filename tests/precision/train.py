"""A script for torchrun that knows nothing of Castor: trains, and saves what it saw.

    train.py --model mlp --optimizer sgd --out FILE [--steps N] [--first N] [--clip NORM] [--load FILE] [--habit NAME]
"""
import argparse
import dataclasses

import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import batch, build, loss_of, optimizer_for
from torch.nn.parallel import DistributedDataParallel


class LossInside(torch.nn.Module):
    """Gives the loss, as language models often do."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, targets):
        return F.cross_entropy(self.model(x).flatten(0, -2), targets.flatten())


class WithoutGradient(torch.autograd.Function):
    """Gives its second argument none."""

    @staticmethod
    def forward(ctx, x, other):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    hidden: list


class Described(torch.nn.Module):
    """Gives what it computed in an object that PyTorch does not know."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        logits = self.model(x)
        return Output(logits, [logits])


def main():
    parser = argparse.ArgumentParser()
    for name in ("model", "optimizer", "out", "load", "habit"):
        parser.add_argument("--" + name)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--clip", type=float)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = build(args.model)
    if args.habit == "narrow":
        model.bfloat16()
    early = model.state_dict() if args.habit == "early state_dict" else None
    whole = {"loss inside": LossInside, "dataclass": Described}.get(args.habit, lambda m: m)(model)
    wrapped = whole if args.habit == "bare" else DistributedDataParallel(whole)
    optimizer = optimizer_for(args.optimizer, [p for p in model.parameters() if p.requires_grad])
    if args.load:
        kept = torch.load(args.load)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
    losses, norms, outside = [], [], []
    for step in range(args.first, args.first + args.steps):
        x, y = batch(args.model, step, rank)
        x.requires_grad_(args.habit == "foreign")
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.habit == "autocast"):
            if args.habit == "loss inside":
                loss = wrapped(x, y)
            else:
                found = wrapped(x)
                loss = loss_of(found.hidden[0] if args.habit == "dataclass" else found, y)
        if args.habit == "overflow" and (step, rank) == (1, 1):
            loss = loss * 1e6
        if args.habit == "penalty":
            loss = loss + 0.01 * sum(p.float().pow(2).sum() for p in model.parameters())
        if args.habit == "foreign":
            loss = WithoutGradient.apply(loss, torch.ones(1, requires_grad=True))
        loss.backward()
        if args.clip:
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip).item())
        if args.habit == "foreign":
            outside.append(x.grad)
        grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        optimizer.step()
        losses.append(loss.item())
        if args.habit == "edit":
            with torch.no_grad():
                model.head.weight.data.clamp_(-0.1, 0.1)
        if args.habit == "swap":  # as for an evaluation with averaged weights
            saved = [p.detach().clone() for p in model.parameters()]
            for p in model.parameters():
                p.data.mul_(0.5)
            for p, s in zip(model.parameters(), saved):
                p.data.copy_(s)
        if args.habit == "write through":
            for name, value in model.state_dict().items():
                if name.startswith("head"):
                    value.mul_(0.5)
    if args.habit == "layout":  # another tensor, whose elements lie in another order
        model.head.weight.data = model.head.weight.data.clamp(-0.1, 0.1).t().contiguous().t()
    if args.habit == "float":
        model.head.float()
    told = {"losses": losses, "norms": norms, "types": [str(p.dtype) for p in model.parameters()],
            "model": model.state_dict(), "optimizer": optimizer.state_dict(), "grads": grads, "outside": outside, "early": early}
    torch.save(told, f"{args.out}.{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
