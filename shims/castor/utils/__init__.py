"""Parts of training loops (Colossal-AI: colossalai.utils)."""
