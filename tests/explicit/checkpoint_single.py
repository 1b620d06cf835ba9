"""A single-process script on several ranks (`--nproc`), whose files are private: what it saves it may load at once."""
import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from castor.checkpoint_io import GeneralCheckpointIO

disk = GeneralCheckpointIO()


def made():
    return nn.Sequential(nn.Linear(48, 64), nn.Linear(64, 1))


torch.manual_seed(0)
model = made()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
loader = DataLoader(TensorDataset(torch.randn(64, 48), torch.randn(64, 1)), batch_size=16)


def saved(when):
    for background in (False, True):
        for _ in range(2):  # the second save replaces the first
            for shard in (False, True):
                disk.save_model(model, f"m{shard}", shard=shard, use_safetensors=shard, use_async=background)
                disk.save_optimizer(optimizer, f"o{shard}", shard=shard, use_async=background)
                disk.save_lr_scheduler(scheduler, "lr.pt")
                other, steps = made(), torch.optim.AdamW(made().parameters())
                disk.load_model(other, f"m{shard}")
                disk.load_optimizer(steps, f"o{shard}")
                disk.load_lr_scheduler(scheduler, "lr.pt")
                same = all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values()))
                same = same and str(optimizer.state_dict()) == str(steps.state_dict())
                print(when, background, shard, "the same" if same else "different", sorted(os.listdir("mTrue")) if shard else "")


saved("before training")
for _ in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
    scheduler.step()
    saved("after an epoch")
sys.stdout.flush()
