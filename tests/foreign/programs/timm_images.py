"""timm's parts as its training script joins them: a network with BatchNorm and stochastic depth, augmentation, with `mix` Mixup
and CutMix, LAMB, a cosine schedule with warm-up, averaged weights, checkpoints, a summary in CSV."""
import os
import sys
from collections import OrderedDict

import torch
from timm import create_model
from timm.data import Mixup, create_dataset, create_loader
from timm.loss import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, CheckpointSaver, ModelEmaV3, accuracy, random_seed, update_summary

random_seed(9, 0)
cpu = torch.device("cpu")
model = create_model("test_efficientnet", num_classes=4, drop_rate=0.1, drop_path_rate=0.1)
mix = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=4) if "mix" in sys.argv else None
shape = dict(input_size=(3, 64, 64), use_prefetcher=False, num_workers=2, device=cpu)
training = create_loader(create_dataset("", root="data", split="train", is_training=True), batch_size=16, is_training=True, auto_augment="rand-m5-n2", re_prob=0.2, **shape)
testing = create_loader(create_dataset("", root="data", split="val"), batch_size=16, **shape)
optimizer = create_optimizer_v2(model, opt="lamb", lr=5e-3, weight_decay=0.02)
schedule, epochs = create_scheduler_v2(optimizer, sched="cosine", num_epochs=2, warmup_epochs=1, warmup_lr=1e-4)
average = ModelEmaV3(model, decay=0.9)
os.makedirs("output", exist_ok=True)
saver = CheckpointSaver(model, optimizer, model_ema=average, checkpoint_dir="output", recovery_dir="output", max_history=1)
criterion = SoftTargetCrossEntropy() if mix else LabelSmoothingCrossEntropy(0.1)
for epoch in range(2):
    model.train()
    seen = AverageMeter()
    for x, y in training:
        if mix:
            x, y = mix(x, y)
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.update(model)
        seen.update(loss.item(), 1)
    model.eval()
    top = AverageMeter()
    with torch.no_grad():
        for x, y in testing:
            top.update(accuracy(average(x), y)[0].item(), x.size(0))
    schedule.step(epoch + 1, top.avg)
    update_summary(epoch, OrderedDict(loss=round(seen.avg, 4)), OrderedDict(top1=top.avg), "output/summary.csv", write_header=epoch == 0)
    saver.save_checkpoint(epoch, metric=top.avg)
    print(f"epoch {epoch}: loss {seen.avg:.4f}, top 1 {top.avg:.2f}")
