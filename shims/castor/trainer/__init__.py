"""What training loops of the ColossalChat kind use (Colossal-AI: coati.trainer)."""
