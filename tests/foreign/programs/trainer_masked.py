"""A Hugging Face Trainer trains masked language modelling: masks drawn by the collator, another number of masked tokens in each
batch, workers, gradient checkpointing, texts grouped by length, SGD."""
from datasets import load_dataset
from transformers import AutoConfig, AutoTokenizer, BertForMaskedLM, DataCollatorForLanguageModeling, Trainer, TrainingArguments, set_seed

set_seed(4)
tokens = AutoTokenizer.from_pretrained("model")
data = load_dataset("json", data_files="data/train.jsonl", split="train")
data = data.map(lambda rows: tokens(rows["text"], truncation=True), batched=True, remove_columns=["text"])
model = BertForMaskedLM(AutoConfig.from_pretrained("model"))
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        "checkpoints", max_steps=6, per_device_train_batch_size=6, learning_rate=0.1, optim="sgd", train_sampling_strategy="group_by_length",
        gradient_checkpointing=True, dataloader_num_workers=2, logging_steps=2, save_steps=3, use_cpu=True, report_to=[], seed=4),
    train_dataset=data, data_collator=DataCollatorForLanguageModeling(tokens, mlm_probability=0.3))
trainer.train()
