"""Meshes of devices (Colossal-AI: colossalai.device)."""
