"""A Hugging Face Trainer on a small GPT-2 made from a configuration (trainer.py, trainer_ddp.py)."""

import argparse
import os

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from record import ON_DEVICE, Recorder
from text import corpus


class Text(Dataset):
    def __init__(self, data, length=32, count=64):
        self.data, self.length, self.count = data, length, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        piece = self.data[index * self.length : (index + 1) * self.length]
        return {"input_ids": piece, "labels": piece}


class Watch(TrainerCallback):
    def __init__(self, out):
        self.out, self.log = out, None

    def on_train_begin(self, settings, state, control, **kwargs):
        self.log = Recorder(self.out)

    def on_pre_optimizer_step(self, settings, state, control, model=None, **kwargs):
        self.log.gradients(model, "before the step")

    def on_step_end(self, settings, state, control, model=None, optimizer=None, **kwargs):
        self.log.parameters(model)

    def on_log(self, settings, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.log.note("loss", {key: value for key, value in logs.items() if key in ("loss", "grad_norm", "learning_rate")})
            self.log.print(f"loss {logs['loss']:.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(5)

    data = corpus()
    config = GPT2Config(
        vocab_size=256,
        n_positions=32,
        n_embd=320,
        n_layer=2,
        n_head=5,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    watch = Watch(args.out)
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir=os.path.join(args.out, "checkpoints"),
            per_device_train_batch_size=4,
            gradient_accumulation_steps=args.accumulate,
            max_steps=args.steps,
            learning_rate=1e-3,
            logging_steps=1,
            save_steps=2,
            report_to=[],
            disable_tqdm=True,
            use_cpu=not ON_DEVICE,
            seed=5,
            dataloader_pin_memory=False,
        ),
        train_dataset=Text(data),
        eval_dataset=Text(data[100_000:], count=8),
        callbacks=[watch],
    )
    trainer.remove_callback(PrinterCallback)  # it prints seconds
    trainer.train(resume_from_checkpoint=args.resume)
    watch.log.note("validation loss", trainer.evaluate()["eval_loss"])
    watch.log.parameters(trainer.model)
    trainer.save_model(os.path.join(args.out, "final"))
    watch.log.close()
