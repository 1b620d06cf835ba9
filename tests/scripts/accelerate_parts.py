"""A training loop on Hugging Face Accelerate: prepare, accumulate, clip, gather (accelerator.py), checkpoints, resume (accelerate_ddp.py)."""

import argparse
import os

os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")
if "RANK_ON_DEVICE" not in os.environ:
    os.environ["ACCELERATE_USE_CPU"] = "true"

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

from model import CLASSES, FEATURES, Classifier
from record import ON_DEVICE, Recorder


def main(resumes):
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--accumulate", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    set_seed(11)

    accelerator = Accelerator(cpu=not ON_DEVICE, gradient_accumulation_steps=args.accumulate)
    generator = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randn(70, FEATURES, generator=generator), torch.randint(0, CLASSES, (70,), generator=generator))
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=10)
    loader = DataLoader(data, batch_size=6, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    log = Recorder(args.out)

    for epoch in range(2):
        model.train()
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    log.note("norm", accelerator.clip_grad_norm_(model.parameters(), 1.0))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            log.note("loss", loss)
            accelerator.print(f"epoch {epoch} loss {loss.item():.4f}")
        model.eval()
        with torch.no_grad():
            scores = [accelerator.gather_for_metrics(model(x).argmax(1) == y) for x, y in loader]
        correct = torch.cat(scores)
        accelerator.print(f"epoch {epoch} {len(correct)} samples")
        log.step(model=model, optimizer=optimizer.optimizer)
        accelerator.wait_for_everyone()
        accelerator.save(accelerator.unwrap_model(model).state_dict(), os.path.join(args.out, f"epoch{epoch}.pt"))
        if epoch == 0 and resumes:
            accelerator.save_state(os.path.join(args.out, "state"))
    accelerator.save_model(model, os.path.join(args.out, "model"))

    if resumes:
        # Back to the end of the first epoch, with everything that belongs to it.
        accelerator.load_state(os.path.join(args.out, "state"))
        log.step(model=model, optimizer=optimizer.optimizer)
        log.note("random number", torch.rand(()))
        model.train()
        for x, y in accelerator.skip_first_batches(loader, 2):
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss)
                accelerator.clip_grad_value_(model.parameters(), 0.01)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            log.note("loss", loss)
        log.note("whole loss", accelerator.reduce(loss.detach(), "mean"))
        log.step(model=model, optimizer=optimizer.optimizer)
    log.close()
    accelerator.end_training()
