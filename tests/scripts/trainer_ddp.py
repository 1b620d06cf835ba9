"""A Hugging Face Trainer on a small GPT-2 made from a configuration, started by torchrun."""

import torch.distributed as dist

import trainer_parts

trainer_parts.main()
dist.destroy_process_group()
