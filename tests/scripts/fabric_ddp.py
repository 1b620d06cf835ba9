"""Training loops on Lightning Fabric: accumulation without synchronization, clipping, reductions, checkpoints, resume."""

import argparse
import os

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, TensorDataset

from model import CLASSES, FEATURES, Classifier
from record import ON_DEVICE, Recorder

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
args = parser.parse_args()
accumulation = 2

torch.set_num_threads(1)
fabric = Fabric(accelerator="cuda" if ON_DEVICE else "cpu", strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"]))
fabric.launch()
fabric.seed_everything(21, verbose=False)

generator = torch.Generator().manual_seed(3)
samples = TensorDataset(torch.randn(96, FEATURES, generator=generator), torch.randint(0, CLASSES, (96,), generator=generator))
loader, held_out = fabric.setup_dataloaders(
    DataLoader(samples, batch_size=4, shuffle=True), DataLoader(TensorDataset(*samples[:32]), batch_size=4)
)
log = Recorder(args.out)


@torch.no_grad()
def evaluate(model):
    model.eval()
    losses, right = [], []
    for x, y in held_out:
        scores = model(x)
        losses.append(F.cross_entropy(scores, y))
        right.append(scores.argmax(1) == y)
    model.train()
    return fabric.all_reduce(torch.stack(losses).mean(), reduce_op="mean"), fabric.all_gather(torch.cat(right))


def epochs(first, end, checkpoint=None):
    with fabric.init_module():
        network = Classifier()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    model, optimizer = fabric.setup(network, optimizer)
    state = {"model": model, "optimizer": optimizer, "epoch": first}
    if checkpoint:
        fabric.load(log.path(checkpoint), state)
    for epoch in range(first, end):
        loader.sampler.set_epoch(epoch)
        for index, (x, y) in enumerate(loader):
            last = index % accumulation == accumulation - 1
            with fabric.no_backward_sync(model, enabled=not last):
                loss = F.cross_entropy(model(x), y)
                fabric.backward(loss / accumulation)
            log.note("loss", loss)
            if not last:
                continue
            log.gradients(network, "before the step")
            # The first epoch clips by the norm, later ones by value.
            if epoch == 0:
                log.note("norm", fabric.clip_gradients(model, optimizer, max_norm=0.5))
            else:
                fabric.clip_gradients(model, optimizer, clip_val=0.01)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            fabric.print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
        state["epoch"] = epoch
        validation, right = evaluate(model)
        log.note("validation loss", validation)
        log.note("right answers", right)
        log.step(model=network, optimizer=optimizer.optimizer)
        fabric.save(log.path(f"epoch{epoch}.ckpt"), state)


epochs(0, 2)
epochs(1, 3, "epoch0.ckpt")
fabric.barrier()
log.close()
torch.distributed.destroy_process_group()
