"""sentence-transformers' trainer with the loss that is named: sentences.py LOSS."""
import sys

from datasets import load_dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments, losses
from transformers import set_seed

set_seed(10)
name = sys.argv[1]
model = SentenceTransformer("model", device="cpu")
data = load_dataset("json", data_files="data/train.jsonl", split="train")
if name == "MultipleNegativesRankingLoss":
    data = data.remove_columns(["score"])
trainer = SentenceTransformerTrainer(
    model=model,
    args=SentenceTransformerTrainingArguments("checkpoints", num_train_epochs=1, per_device_train_batch_size=8, learning_rate=1e-3, logging_steps=1,
                                              save_steps=4, use_cpu=True, report_to=[], seed=10),
    train_dataset=data, loss=getattr(losses, name)(model))
trainer.train()
