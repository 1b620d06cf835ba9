"""A run that is saved under one plugin and number of ranks, and goes on under another: checkpoint_moved.py save|load|whole FOLDER."""
import hashlib
import os
import sys

import torch

from castor.booster import Booster
from checkpoint_runs import run, started
from found import end, found, launch

phase, folder = sys.argv[1:]
several = int(os.environ.get("WORLD_SIZE", 1)) > 1
if several:
    launch()
booster = Booster()


def digest(model, optimizer):
    """Of all bits of the model and of the optimizer's state, and of its learning rates."""
    tensors = [*model.state_dict().values(), *(t for one in optimizer.state_dict()["state"].values() for t in one.values())]
    whole = hashlib.sha256()
    for t in tensors:
        whole.update(f"{t.dtype} {tuple(t.shape)}".encode() + t.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return [len(tensors), whole.hexdigest(), [g["lr"] for g in optimizer.param_groups], sorted({str(t.dtype) for t in tensors})]


for kind in ("SGD", "AdamW"):
    for shard in (False, True):
        place = os.path.join(folder, f"{kind}-{shard}")
        model, optimizer, scheduler = started(1 if phase != "load" else 2, several, kind)
        os.makedirs(place, exist_ok=True)
        if phase == "load":
            booster.load_model(model, place)
            booster.load_optimizer(optimizer, place)
            booster.load_lr_scheduler(scheduler, os.path.join(place, "scheduler"))
        run(model, optimizer, scheduler, 6 if phase == "whole" else 3)
        if phase == "save":
            booster.save_model(model, place, shard=shard, size_per_shard=0.01, use_safetensors=True, use_async=True)
            booster.save_optimizer(optimizer, place, shard=shard, size_per_shard=0.01, use_async=True)
            booster.save_lr_scheduler(scheduler, os.path.join(place, "scheduler"))
            run(model, optimizer, scheduler, 1)  # not in the checkpoint
        found(f"{kind}, {shard}", digest(model.module if several else model, optimizer))
if several:
    end()
