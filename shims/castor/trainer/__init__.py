"""Helpers of training loops like ColossalChat's (Colossal-AI: coati.trainer)."""
