"""A training loop on Hugging Face Accelerate: prepare, accumulate, clip, gather, checkpoints, resume."""

import accelerate_parts

accelerate_parts.main(resumes=True)
