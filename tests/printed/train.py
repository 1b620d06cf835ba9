"""Trains small models in one process, as scripts do, and prints what scripts print: losses, norms, accuracies.

    train.py mlp|convolution|gpt|trainer sgd|adamw
"""
import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts"))
from model import GPT
from text import Windows, corpus

CLASSES = 5


def optimizer_for(parameters, name):
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.05)


def samples(count, *shape):
    x = torch.randn(count, *shape)
    return TensorDataset(x, (x.flatten(1)[:, :CLASSES]).argmax(1))


def classify(network, name, *shape):
    optimizer = optimizer_for(network.parameters(), name)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    train = DataLoader(samples(64, *shape), 12, shuffle=True)  # the last batch has 4
    test = DataLoader(samples(30, *shape), 8)
    for epoch in range(3):
        network.train()
        for x, y in train:
            optimizer.zero_grad()
            loss = F.cross_entropy(network(x), y)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            print(f"loss {loss.item():.4f} norm {norm.item():.4f}")
        scheduler.step(loss.item())
        network.eval()
        with torch.no_grad():
            right = sum((network(x).argmax(1) == y).sum().item() for x, y in test)
        print(f"epoch {epoch} accuracy {right / 30:.4f} learning rate {optimizer.param_groups[0]['lr']:.6f}")


def mlp(name):
    classify(nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 64), nn.GELU(), nn.Linear(64, CLASSES)), name, 32)


def convolution(name):
    features = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                             nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    classify(nn.Sequential(features, nn.Flatten(), nn.Linear(16 * 16, CLASSES)), name, 1, 8, 8)


def gpt(name):
    model = GPT(context=32, layers=2, width=64, heads=2)
    optimizer = optimizer_for(model.parameters(), name)
    data = corpus()
    for tokens, targets in DataLoader(Windows(data, 32, 80), 8, shuffle=True):
        _, loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"loss {loss.item():.4f}")
    with torch.no_grad():
        losses = [model(*batch)[1].item() for batch in DataLoader(Windows(data[100_000:], 32, 10), 4)]
    print(f"validation loss {sum(losses) / len(losses):.4f}")


class Pieces(Dataset):
    def __init__(self, data, count):
        self.data, self.count = data, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        piece = self.data[index * 16 : (index + 1) * 16]
        return {"input_ids": piece, "labels": piece}


def trainer(name):
    from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

    class Print(TrainerCallback):
        def on_log(self, settings, state, control, logs=None, **kwargs):
            if "loss" in logs:
                print(f"step {state.global_step} loss {logs['loss']:.4f} norm {logs['grad_norm']:.4f}")

    config = GPT2Config(vocab_size=256, n_positions=16, n_embd=64, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0, bos_token_id=None, eos_token_id=None)
    model = GPT2LMHeadModel(config)
    settings = TrainingArguments(output_dir="checkpoints", per_device_train_batch_size=8, max_steps=8, logging_steps=1, report_to=[],
                                 learning_rate=0.05 if name == "sgd" else 1e-3, optim="sgd" if name == "sgd" else "adamw_torch",
                                 save_strategy="no", disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False, seed=1)
    data = corpus()
    run = Trainer(model=model, args=settings, train_dataset=Pieces(data, 64), eval_dataset=Pieces(data[100_000:], 12),
                  callbacks=[Print])
    run.remove_callback(PrinterCallback)  # it prints seconds
    run.train()
    print(f"validation loss {run.evaluate()['eval_loss']:.4f}")


torch.set_num_threads(1)
torch.manual_seed(1)
{"mlp": mlp, "convolution": convolution, "gpt": gpt, "trainer": trainer}[sys.argv[1]](sys.argv[2])
