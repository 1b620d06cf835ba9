"""A Hugging Face Trainer fine-tunes a BERT classifier: padding to each batch's longest text, dropout, label smoothing,
accumulation, evaluation, the best checkpoint at the end, early stopping, one checkpoint kept."""
import numpy
from datasets import load_dataset
from transformers import (AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, EarlyStoppingCallback, Trainer,
                          TrainingArguments)

data = load_dataset("json", data_files={"train": "data/train.jsonl", "test": "data/test.jsonl"})
tokens = AutoTokenizer.from_pretrained("model")
data = data.map(lambda rows: tokens(rows["text"], truncation=True), batched=True)


def metrics(found):
    return {"accuracy": float((numpy.argmax(found.predictions, 1) == found.label_ids).mean())}


trainer = Trainer(
    model_init=lambda: AutoModelForSequenceClassification.from_pretrained("model", num_labels=3),
    args=TrainingArguments(
        "checkpoints", num_train_epochs=3, per_device_train_batch_size=8, gradient_accumulation_steps=2, learning_rate=5e-4,
        warmup_steps=2, weight_decay=0.01, label_smoothing_factor=0.1, eval_strategy="epoch", save_strategy="epoch", logging_steps=1,
        load_best_model_at_end=True, metric_for_best_model="accuracy", save_total_limit=1, use_cpu=True, report_to=[], seed=3),
    train_dataset=data["train"], eval_dataset=data["test"], data_collator=DataCollatorWithPadding(tokens), compute_metrics=metrics,
    callbacks=[EarlyStoppingCallback(2)])
result = trainer.train()
trainer.save_model("final")
trainer.log_metrics("train", result.metrics)
trainer.save_metrics("train", result.metrics)
trainer.save_state()
print("evaluation", {key: round(value, 4) for key, value in trainer.evaluate().items() if key in ("eval_loss", "eval_accuracy")})
