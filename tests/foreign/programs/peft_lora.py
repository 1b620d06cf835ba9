"""PEFT's LoRA on a causal language model in a Trainer: most parameters frozen, padding left out of the loss, the adapter saved."""
from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer, TrainingArguments, set_seed

set_seed(5)
tokens = AutoTokenizer.from_pretrained("model")
data = load_dataset("json", data_files="data/train.jsonl", split="train")
data = data.map(lambda rows: tokens(rows["text"], truncation=True), batched=True, remove_columns=["text"])
model = get_peft_model(AutoModelForCausalLM.from_pretrained("model"), LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj"],
                                                                               modules_to_save=["lm_head"], task_type="CAUSAL_LM"))
model.print_trainable_parameters()
trainer = Trainer(
    model=model,
    args=TrainingArguments("checkpoints", max_steps=6, per_device_train_batch_size=8, learning_rate=1e-2, logging_steps=1, save_steps=3, use_cpu=True,
                           report_to=[], seed=5),
    train_dataset=data, data_collator=DataCollatorForLanguageModeling(tokens, mlm=False))
trainer.train()
model.save_pretrained("adapter")
merged = model.merge_and_unload()
print("merged", sum(float(p.double().sum()) for p in merged.parameters()))
