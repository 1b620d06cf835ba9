"""Trains a ResNet on images of CIFAR's size, as scripts for Colossal-AI do. The images are made on the spot."""
import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torchvision
import torchvision.transforms as transforms
from torch.optim.lr_scheduler import MultiStepLR
from tqdm import tqdm

import colossalai
from colossalai.accelerator import get_accelerator
from colossalai.booster import Booster
from colossalai.booster.plugin import GeminiPlugin, LowLevelZeroPlugin, TorchDDPPlugin
from colossalai.booster.plugin.dp_plugin_base import DPPluginBase
from colossalai.cluster import DistCoordinator
from colossalai.nn.optimizer import HybridAdam

NUM_EPOCHS = 2
BATCH_SIZE = 4
LEARNING_RATE = 1e-3


class Images(torch.utils.data.Dataset):
    def __init__(self, count, transform):
        draws = torch.Generator().manual_seed(count)
        self.images = torch.randint(0, 256, (count, 32, 32, 3), dtype=torch.uint8, generator=draws).numpy()
        self.labels = torch.randint(0, 10, (count,), generator=draws).tolist()
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.transform(self.images[index]), self.labels[index]


def build_dataset(train=True):
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))])
    return Images(24 if train else 10, transform)


def build_model():
    return torchvision.models.resnet18(num_classes=10)


def build_dataloader(batch_size: int, coordinator: DistCoordinator, plugin: DPPluginBase):
    with coordinator.priority_execution():
        train_dataset = build_dataset(train=True)
        test_dataset = build_dataset(train=False)
    train_dataloader = plugin.prepare_dataloader(train_dataset, batch_size=batch_size, shuffle=True, drop_last=True)
    test_dataloader = plugin.prepare_dataloader(test_dataset, batch_size=batch_size, shuffle=False, drop_last=False)
    return train_dataloader, test_dataloader


@torch.no_grad()
def evaluate(model, test_dataloader, coordinator):
    model.eval()
    device = get_accelerator().get_current_device()
    correct = torch.zeros(1, dtype=torch.int64, device=device)
    total = torch.zeros(1, dtype=torch.int64, device=device)
    for images, labels in test_dataloader:
        images = images.cuda()
        labels = labels.cuda()
        _, predicted = torch.max(model(images).data, 1)
        total += labels.size(0)
        correct += (predicted == labels).sum().item()
    dist.all_reduce(correct)
    dist.all_reduce(total)
    coordinator.print_on_master(f"accuracy {correct.item()} of {total.item()}")


def train_epoch(epoch, model, optimizer, criterion, train_dataloader, booster, coordinator):
    model.train()
    with tqdm(train_dataloader, desc=f"Epoch [{epoch + 1}/{NUM_EPOCHS}]", disable=not coordinator.is_master()) as pbar:
        for images, labels in pbar:
            images = images.cuda()
            labels = labels.cuda()
            outputs = model(images)
            loss = criterion(outputs, labels)
            booster.backward(loss, optimizer)
            optimizer.step()
            optimizer.zero_grad()
            pbar.set_postfix({"loss": loss.item()})
            coordinator.print_on_master(f"loss {loss.item()!r}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", "--plugin", default="torch_ddp", choices=["torch_ddp", "torch_ddp_fp16", "low_level_zero", "gemini"])
    parser.add_argument("-r", "--resume", type=int, default=-1, help="the epoch whose checkpoint is gone on with")
    parser.add_argument("-c", "--checkpoint", type=str, default="./checkpoint")
    parser.add_argument("-i", "--interval", type=int, default=1, help="epochs between checkpoints")
    args = parser.parse_args()
    if args.interval > 0:
        Path(args.checkpoint).mkdir(parents=True, exist_ok=True)

    colossalai.launch_from_torch()
    coordinator = DistCoordinator()
    learning_rate = LEARNING_RATE * coordinator.world_size

    booster_kwargs = {}
    if args.plugin == "torch_ddp_fp16":
        booster_kwargs["mixed_precision"] = "fp16"
    if args.plugin.startswith("torch_ddp"):
        plugin = TorchDDPPlugin()
    elif args.plugin == "gemini":
        plugin = GeminiPlugin(placement_policy="static", strict_ddp_mode=True, initial_scale=2**5)
    elif args.plugin == "low_level_zero":
        plugin = LowLevelZeroPlugin(initial_scale=2**5)
    booster = Booster(plugin=plugin, **booster_kwargs)

    train_dataloader, test_dataloader = build_dataloader(BATCH_SIZE, coordinator, plugin)
    torch.manual_seed(42)
    model = build_model()
    criterion = nn.CrossEntropyLoss()
    optimizer = HybridAdam(model.parameters(), lr=learning_rate)
    lr_scheduler = MultiStepLR(optimizer, milestones=[1, 20], gamma=1 / 3)
    model, optimizer, criterion, _, lr_scheduler = booster.boost(model, optimizer, criterion=criterion, lr_scheduler=lr_scheduler)

    if args.resume >= 0:
        booster.load_model(model, f"{args.checkpoint}/model_{args.resume}.pth")
        booster.load_optimizer(optimizer, f"{args.checkpoint}/optimizer_{args.resume}.pth")
        booster.load_lr_scheduler(lr_scheduler, f"{args.checkpoint}/lr_scheduler_{args.resume}.pth")

    start_epoch = args.resume if args.resume >= 0 else 0
    for epoch in range(start_epoch, NUM_EPOCHS):
        train_epoch(epoch, model, optimizer, criterion, train_dataloader, booster, coordinator)
        lr_scheduler.step()
        if args.interval > 0 and (epoch + 1) % args.interval == 0:
            booster.save_model(model, f"{args.checkpoint}/model_{epoch + 1}.pth")
            booster.save_optimizer(optimizer, f"{args.checkpoint}/optimizer_{epoch + 1}.pth")
            booster.save_lr_scheduler(lr_scheduler, f"{args.checkpoint}/lr_scheduler_{epoch + 1}.pth")
    evaluate(model, test_dataloader, coordinator)


if __name__ == "__main__":
    main()
