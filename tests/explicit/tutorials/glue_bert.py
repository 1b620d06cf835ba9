"""Finetunes a BERT on pairs of sentences, as scripts for Colossal-AI do. The sentences are made on the spot."""
import argparse

import torch
import torch.distributed as dist
from tqdm import tqdm
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

import colossalai
from colossalai.accelerator import get_accelerator
from colossalai.booster import Booster
from colossalai.booster.plugin import GeminiPlugin, LowLevelZeroPlugin, TorchDDPPlugin
from colossalai.cluster import DistCoordinator
from colossalai.nn.optimizer import HybridAdam

NUM_EPOCHS = 2
BATCH_SIZE = 4
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.01
WARMUP_FRACTION = 0.3


class Sentences(torch.utils.data.Dataset):
    """Words, and which of two kinds the first one is of."""

    def __init__(self, count):
        self.ids = torch.randint(0, 64, (count, 12), generator=torch.Generator().manual_seed(count))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        ids = self.ids[index]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids), "labels": ids[0] % 2}


def build_dataset(train=True):
    return Sentences(24 if train else 10)


def build_model():
    return BertForSequenceClassification(BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=16, num_labels=2,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))


def move_to_cuda(batch):
    return {k: v.cuda() for k, v in batch.items()}


def grouped(model):
    no_decay = ["bias", "LayerNorm.weight"]
    return [
        {"params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)], "weight_decay": WEIGHT_DECAY},
        {"params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
    ]


@torch.no_grad()
def evaluate(model, dataloader, coordinator):
    model.eval()
    accum_loss = torch.zeros(1, device=get_accelerator().get_current_device())
    for batch in dataloader:
        val_loss, logits = model(**move_to_cuda(batch))[:2]
        accum_loss.add_(val_loss)
        assert logits.shape[1] == 2
    dist.all_reduce(accum_loss.div_(len(dataloader)))
    coordinator.print_on_master(f"validation {accum_loss.item() / coordinator.world_size!r}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", "--plugin", default="torch_ddp", choices=["torch_ddp", "torch_ddp_fp16", "gemini", "low_level_zero", "torch_fsdp"])
    args = parser.parse_args()

    colossalai.launch_from_torch(seed=42)
    coordinator = DistCoordinator()
    lr = LEARNING_RATE * coordinator.world_size

    booster_kwargs = {}
    if args.plugin == "torch_ddp_fp16":
        booster_kwargs["mixed_precision"] = "fp16"
    if args.plugin.startswith("torch_ddp"):
        plugin = TorchDDPPlugin()
    elif args.plugin == "gemini":
        plugin = GeminiPlugin(placement_policy="static", strict_ddp_mode=True, initial_scale=2**5)
    elif args.plugin == "low_level_zero":
        plugin = LowLevelZeroPlugin(initial_scale=2**5)
    elif args.plugin == "torch_fsdp":
        from colossalai.booster.plugin import TorchFSDPPlugin

        plugin = TorchFSDPPlugin()
    booster = Booster(plugin=plugin, **booster_kwargs)

    train_dataloader = plugin.prepare_dataloader(build_dataset(), batch_size=BATCH_SIZE, shuffle=True, drop_last=True)
    test_dataloader = plugin.prepare_dataloader(build_dataset(train=False), batch_size=BATCH_SIZE)
    torch.manual_seed(42)
    model = build_model()
    optimizer = HybridAdam(grouped(model), lr=lr, eps=1e-8)
    total_steps = len(train_dataloader) * NUM_EPOCHS
    lr_scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=int(WARMUP_FRACTION * total_steps), num_training_steps=total_steps)
    model, optimizer, _, _, lr_scheduler = booster.boost(model, optimizer, lr_scheduler=lr_scheduler)

    for epoch in range(NUM_EPOCHS):
        model.train()
        with tqdm(train_dataloader, desc=f"Epoch [{epoch + 1}/{NUM_EPOCHS}]", disable=not coordinator.is_master()) as pbar:
            for batch in pbar:
                batch = move_to_cuda(batch)
                outputs = model(**batch)
                loss = outputs[0]
                booster.backward(loss, optimizer)
                optimizer.step()
                optimizer.zero_grad()
                lr_scheduler.step()
                pbar.set_postfix({"loss": loss.item()})
                coordinator.print_on_master(f"loss {loss.item()!r}")
    evaluate(model, test_dataloader, coordinator)


if __name__ == "__main__":
    main()
