"""Shared by the folders of the agent: the store's entries and places, tensors over addresses, parts, graphs."""
