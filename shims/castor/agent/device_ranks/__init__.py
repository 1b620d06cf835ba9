"""Ranks that train on devices: sums of gradients, owners' steps, and what a rank reads of another one (docs/device-ranks.md)."""
