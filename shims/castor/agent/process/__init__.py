"""The process that the script runs in: what it does (backward passes, compiling) and how it ends."""
