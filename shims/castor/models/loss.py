"""Losses (Colossal-AI: coati.models.loss)."""
from ..nn.loss import GPTLMLoss

__all__ = ["GPTLMLoss"]
