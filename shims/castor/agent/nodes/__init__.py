"""Several nodes, and what the ranks of a process group agree on."""
