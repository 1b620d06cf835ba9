"""Accelerate's own training loop: accumulation, clipping, a schedule, metrics gathered, states saved and read back."""
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_linear_schedule_with_warmup

set_seed(6)
accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
data = load_dataset("json", data_files={"train": "data/train.jsonl", "test": "data/test.jsonl"})
tokens = AutoTokenizer.from_pretrained("model")
data = data.map(lambda rows: tokens(rows["text"], truncation=True), batched=True, remove_columns=["text"]).rename_column("label", "labels")


def collate(rows):
    return tokens.pad(rows, padding="longest", return_tensors="pt")


training = torch.utils.data.DataLoader(data["train"], shuffle=True, collate_fn=collate, batch_size=8, drop_last=True)
testing = torch.utils.data.DataLoader(data["test"], collate_fn=collate, batch_size=16)
model = AutoModelForSequenceClassification.from_pretrained("model", num_labels=3)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = get_linear_schedule_with_warmup(optimizer, 2, 20)
model, optimizer, training, testing, schedule = accelerator.prepare(model, optimizer, training, testing, schedule)
for epoch in range(2):
    model.train()
    for step, batch in enumerate(training):
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    right = []
    for batch in testing:
        with torch.no_grad():
            found = model(**batch).logits.argmax(-1)
        found, expected = accelerator.gather_for_metrics((found, batch["labels"]))
        right.append((found == expected).float())
    accelerator.print(f"epoch {epoch}: {torch.cat(right).mean():.3f} of {sum(map(len, right))}")
    accelerator.save_state(f"state{epoch}")
accelerator.load_state("state0")
accelerator.wait_for_everyone()
accelerator.unwrap_model(model).save_pretrained("final", save_function=accelerator.save, is_main_process=accelerator.is_main_process)
