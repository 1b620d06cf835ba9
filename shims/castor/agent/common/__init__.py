"""What the folders of the agent share: the store's entries and places, tensors over addresses, parts, graphs."""
