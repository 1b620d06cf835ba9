"""Trains a vision transformer on images of CIFAR's size, as scripts for Colossal-AI do. The images are made on the spot."""
import argparse

import torch
import torch.nn as nn
from tqdm import tqdm

import colossalai
from colossalai.booster import Booster
from colossalai.booster.plugin import GeminiPlugin, LowLevelZeroPlugin, TorchDDPPlugin
from colossalai.cluster import DistCoordinator
from colossalai.logging import disable_existing_loggers, get_dist_logger
from colossalai.nn.lr_scheduler import LinearWarmupLR
from colossalai.nn.optimizer import HybridAdam

NUM_EPOCHS = 2
WARMUP_EPOCHS = 1
BATCH_SIZE = 4
LEARNING_RATE = 1e-3


class VisionTransformer(nn.Module):
    def __init__(self, patch=8, width=32, depth=2, heads=4, classes=10):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, (32 // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls.expand(len(tokens), -1, -1), tokens], dim=1) + self.position
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.norm(tokens)[:, 0])


def build_dataset():
    draws = torch.Generator().manual_seed(3)
    return torch.utils.data.TensorDataset(torch.randn(24, 3, 32, 32, generator=draws), torch.randint(0, 10, (24,), generator=draws))


def build_model():
    return VisionTransformer()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", "--plugin", default="torch_ddp", choices=["torch_ddp", "torch_ddp_fp16", "low_level_zero", "gemini"])
    parser.add_argument("--precision", default="fp16")
    args = parser.parse_args()

    colossalai.launch_from_torch(seed=42)
    coordinator = DistCoordinator()
    disable_existing_loggers()
    logger = get_dist_logger()

    booster_kwargs = {}
    if args.plugin == "torch_ddp_fp16":
        booster_kwargs["mixed_precision"] = "fp16"
    if args.plugin.startswith("torch_ddp"):
        plugin = TorchDDPPlugin()
    elif args.plugin == "gemini":
        plugin = GeminiPlugin(offload_optim_frac=1.0, pin_memory=True, initial_scale=2**5, precision=args.precision)
    elif args.plugin == "low_level_zero":
        plugin = LowLevelZeroPlugin(initial_scale=2**5, precision=args.precision)
    logger.info(f"Set plugin as {args.plugin}", ranks=[0])

    dataloader = plugin.prepare_dataloader(build_dataset(), batch_size=BATCH_SIZE, shuffle=True, drop_last=True)
    torch.manual_seed(42)
    model = build_model()
    optimizer = HybridAdam(model.parameters(), lr=LEARNING_RATE * coordinator.world_size, weight_decay=0.1)
    criterion = nn.CrossEntropyLoss()
    lr_scheduler = LinearWarmupLR(optimizer, NUM_EPOCHS, WARMUP_EPOCHS)
    booster = Booster(plugin=plugin, **booster_kwargs)
    model, optimizer, criterion, dataloader, lr_scheduler = booster.boost(
        model=model, optimizer=optimizer, criterion=criterion, dataloader=dataloader, lr_scheduler=lr_scheduler
    )
    torch.cuda.synchronize()
    model.train()
    for epoch in range(NUM_EPOCHS):
        with tqdm(range(len(dataloader)), desc=f"Epoch [{epoch + 1}]", disable=not coordinator.is_master()) as pbar:
            data_iter = iter(dataloader)
            for _ in pbar:
                optimizer.zero_grad()
                images, labels = (part.to(torch.cuda.current_device()) for part in next(data_iter))
                loss = criterion(model(images), labels)
                booster.backward(loss, optimizer)
                optimizer.step()
                pbar.set_postfix({"loss": loss.item()})
                coordinator.print_on_master(f"loss {loss.item()!r}")
        lr_scheduler.step()
    booster.save_model(model, "./output_model", shard=True)
    logger.info("Saved the model", ranks=[0])


if __name__ == "__main__":
    main()
