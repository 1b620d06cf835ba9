"""What is left of ColossalChat's models: their losses (Colossal-AI: coati.models)."""
