"""Memory that saving and loading take beyond the model's own, in MiB: a model of 256, in shards of 32."""
import os
import re
import shutil
import tempfile

import torch
from torch import nn

from castor.checkpoint_io import GeneralCheckpointIO
from found import found

disk = GeneralCheckpointIO()
model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(64)))
for p in model.parameters():
    p.grad = torch.ones_like(p)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer.step()
folder = tempfile.mkdtemp(prefix="castor-memory-")


def status(name):
    with open("/proc/self/status") as file:
        return int(re.search(name + r":\s+(\d+) kB", file.read())[1]) >> 10


def extra(function, *arguments, **named):
    """The highest resident memory of the call above what was resident before."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = status("VmRSS")
    function(*arguments, **named)
    return status("VmHWM") - before


peaks = {}
for safe in (False, True):
    for shard in (False, True):
        place = os.path.join(folder, f"{safe}-{shard}")
        peaks[f"save, {safe}, {shard}"] = extra(disk.save_model, model, place, shard=shard, size_per_shard=32, use_safetensors=safe)
        peaks[f"load, {safe}, {shard}"] = extra(disk.load_model, model, place)
    shutil.rmtree(folder)
    os.mkdir(folder)
peaks["save optimizer"] = extra(disk.save_optimizer, optimizer, os.path.join(folder, "optimizer"), shard=True, size_per_shard=32)
optimizer.state.clear()
peaks["load optimizer"] = extra(disk.load_optimizer, optimizer, os.path.join(folder, "optimizer")) - 256  # its states are its own
shutil.rmtree(folder)
found("peaks", peaks)
