"""Optimizer steps, what optimizers keep, and operations on all gradients."""
