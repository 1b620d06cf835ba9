"""A Hugging Face Trainer on a small GPT-2 made from a configuration, in one process."""

import trainer_parts

trainer_parts.main()
