"""A GPT-2 made from its configuration, under Hugging Face's Trainer."""
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed


class Say(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print("loss", logs["loss"], "norm", float(logs["grad_norm"]))


set_seed(0)
torch.manual_seed(0)
data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 500, (24, 32))]
model = GPT2LMHeadModel(GPT2Config(vocab_size=500, n_positions=32, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(folder, max_steps=3, per_device_train_batch_size=4, logging_steps=1, report_to=[], save_strategy="no",
                                  disable_tqdm=True, dataloader_pin_memory=False)
    Trainer(model, arguments, train_dataset=data, callbacks=[Say()]).train()
if torch.cuda.is_available():
    print("peak", 0, torch.cuda.max_memory_allocated())
