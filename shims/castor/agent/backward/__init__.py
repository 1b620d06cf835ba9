"""Backward passes: gradients on their way to the store's sums."""
