"""The loop on Hugging Face Accelerate, in one process."""

import accelerate_parts

accelerate_parts.main(resumes=False)
